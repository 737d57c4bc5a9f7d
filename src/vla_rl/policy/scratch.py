"""A policy of any size with random weights: what a machine can do with it, without a checkpoint.

In: sizes (those of a MolmoAct2 release unless told otherwise) and a checkpoint whose codec and normalisation it takes.
Out: a `VlaPolicy` that can be sampled, trained and saved like any other, and succeeds at nothing. Its base is in no
file, so a run of it is not exported. The prompt has more
picture tokens than a twin's; its words are few, because the tokenizer is the twin's, filled up with tokens that nothing
writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vla_rl.errors import ConfigError
from vla_rl.policy.hub import resolve
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.parts import DTYPES, read_parts
from vla_rl.policy.policy import VlaPolicy, new_twin, set_products
from vla_rl.policy.sources import Sources


def scratch_policy(
    *,
    device: str,
    tables: str,
    seed: int,
    dtype: str,
    tf32: bool,
    task: str,
    grammar: str,
    vision_read: Sequence[int],
    base_size: int,
    text_heads: int,
    text_kv_heads: int,
    vision_layers: int,
    **sizes: Any,
) -> VlaPolicy:
    """Draw the weights of a network on the device that it is for.

    Args:
        device: a torch device; other kinds of device draw other weights.
        tables: a checkpoint: a directory, ``bundled:NAME`` or a hub id.
        seed: of the weights.
        dtype: number format of the network; they are drawn in float32.
        tf32: see `set_products`.
        base_size: rows of embedding and head, at least.
        sizes: the other attributes of `TwinArchitecture`.

    Raises:
        ConfigError: sizes that do not divide, or what the checkpoint lacks.
    """
    wrong = [
        f"{what} is not a multiple of {of}"
        for what, of, rest in (
            ("text_heads", "text_kv_heads", text_heads % text_kv_heads),
            ("text_head", "2", sizes["text_head"] % 2),
            ("image_px", "patch_px", sizes["image_px"] % sizes["patch_px"]),
            ("vision_width", "vision_head", sizes["vision_width"] % sizes["vision_head"]),
        )
        if rest
    ]
    wrong += [f"there is no layer {layer} to read" for layer in vision_read if not 0 <= layer < vision_layers]
    if wrong:
        raise ConfigError("these sizes make no network", where="policy", remedy="; ".join(wrong))
    set_products(tf32=tf32)
    directory = resolve(tables, None, where="policy.tables", pin="policy.tables")
    parts = read_parts(directory, Sources(None, None, None, None))
    architecture = TwinArchitecture(
        text_heads=text_heads, text_kv_heads=text_kv_heads, vision_layers=vision_layers, vision_read=tuple(vision_read),
        **sizes,
    )  # fmt: skip
    policy = new_twin(
        codec=parts.codec, stats=parts.tables.stats, task=task, seed=seed, architecture=architecture,
        base_size=base_size, device=device, grammar=grammar,
    )  # fmt: skip
    for weight in policy.model.parameters():  # rotary frequencies, which are no parameters, stay exact
        weight.data = weight.data.to(DTYPES[dtype])
    return policy
