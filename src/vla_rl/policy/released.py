"""A checkpoint directory in the Molmo2 layout, checked before a weight is read and then loaded.

In: a directory (a MolmoAct2 release, an export, a twin). Out: a native network in evaluation mode, or the first broken
promise as a named refusal. Loading goes through transformers' own Molmo2 classes; no code and no pickle of a checkpoint
is ever run. Weights of the flow-matching expert are no part of the network: they stay in their files, from where an
export copies them and `vla_rl.policy.expert_files` loads them on request.

What is checked: both heads that the configuration declares are there; every weight is stored, in the right shape and
format; tokenizer and configuration agree about every action id and about where the families stand; pictures are taken
in as they were in training. Tables and joint frame are `vla_rl.policy.tables`'s business.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from vla_rl.policy.layout import EXPERT, HEAD, ROTARY, expected_shapes, native_config
from vla_rl.policy.native import own_memory, quiet_transformers
from vla_rl.policy.prompt import STATE_BINS
from vla_rl.policy.refusals import (
    ActionIds,
    DamagedFile,
    MismatchedWeights,
    MissingWeights,
    OneHead,
    UnexpectedWeights,
    UnsupportedFeature,
    VocabularyLayout,
)
from vla_rl.policy.sources import CONFIG, RELEASED, read_config
from vla_rl.policy.tokenizer import TURN_END
from vla_rl.policy.weightfiles import FLOATS, WeightFiles, check_finite

TOKENIZER, PROCESSOR = "tokenizer.json", "processor_config.json"
# What the image processor of the release does unless it is told otherwise.
_RELEASED_PICTURES = {
    "crop_mode": "overlap-and-resize-c2", "size": {"height": 378, "width": 378}, "patch_size": 14,
    "pooling_size": [2, 2], "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
}  # fmt: skip
_BLOCK = re.compile(r"\.blocks\.(\d+)\.")


@dataclass(frozen=True)
class Opened:
    """The small files of a checkpoint and the headers of its weights.

    Attributes:
        directory: where it is.
        raw: `config.json`.
        config: the native configuration.
        files: what is stored.
    """

    directory: Path
    raw: dict[str, Any]
    config: Any
    files: WeightFiles

    @classmethod
    def of(cls, directory: Path) -> Opened:
        """Read configuration and headers.

        Raises:
            ConfigError: the directory is no checkpoint, or holds no safetensors weights.
            CheckpointRefused: a file is damaged, or the configuration is of another model.
        """
        raw = read_config(directory)
        return cls(directory, raw, native_config(raw), WeightFiles.open(directory))

    @property
    def released(self) -> bool:
        """A MolmoAct2 release or the export of one, as opposed to a twin."""
        return self.raw.get("model_type") == RELEASED

    @property
    def expert(self) -> list[str]:
        """Names of the flow-matching expert's weights."""
        return [name for name in self.files.entries if EXPERT.match(name)]

    @property
    def network(self) -> list[str]:
        """Names of the network's own weights."""
        return [name for name in self.files.entries if not EXPERT.match(name) and not ROTARY.match(name)]


def check_heads(opened: Opened) -> None:
    """Refuse a checkpoint of which only one head can be used.

    The token head is `lm_head`; the other one is the flow-matching expert, which may not be asked for. A release that
    says "both" and lacks the expert is a partial copy, and would export as one.

    Raises:
        OneHead: naming the head that is missing or was not trained.
        UnsupportedFeature: an action mode that is none.
    """
    where = str(opened.directory / CONFIG)
    mode = opened.raw.get("action_mode", "both" if opened.released else "discrete")
    if mode == "continuous":
        raise OneHead(
            "it was trained for its continuous head alone; its token head is untrained or stale",
            where=where,
            remedy="fine-tune the token head first, or take a checkpoint whose action_mode is both or discrete",
        )
    if mode not in ("both", "discrete"):
        raise UnsupportedFeature(f"action_mode is {mode!r}", where=where, remedy="it must be both or discrete")
    if HEAD not in opened.files.entries:
        raise OneHead(f"its token head is missing: there is no {HEAD}", where=str(opened.directory))
    if (mode == "both" or opened.raw.get("add_action_expert", opened.released)) and not opened.expert:
        raise OneHead(
            "its configuration declares a flow-matching expert, of which no weight is stored",
            where=str(opened.directory),
            remedy="fetch all shards; a checkpoint without expert says action_mode discrete, add_action_expert false",
        )


def check_weights(opened: Opened) -> None:
    """Compare what is stored with what the network needs: names, shapes, number formats.

    Raises:
        MissingWeights, UnexpectedWeights, MismatchedWeights: with the number of weights and the first.
    """
    expected, entries, where = expected_shapes(opened.config), opened.files.entries, str(opened.directory)
    missing = [name for name in expected if name not in entries] + _missing_of_expert(opened)
    if missing:
        raise MissingWeights(
            f"{len(missing)} weights are not stored, first {missing[0]}", where=where, remedy="fetch all shards"
        )
    unexpected = [name for name in opened.network if name not in expected]
    if unexpected:
        raise UnexpectedWeights(f"{len(unexpected)} weights belong to no part, first {unexpected[0]}", where=where)
    for name, shape in expected.items():
        if entries[name].shape != shape:
            raise MismatchedWeights(f"{name} is {list(entries[name].shape)}, not {list(shape)}", where=where)
    for name, entry in entries.items():
        if entry.dtype not in FLOATS:
            raise MismatchedWeights(f"{name} is stored as {entry.dtype}, which is no float", where=where)


def check_rotary(opened: Opened) -> None:
    """The native network computes its rotary frequencies anew; the stored buffers must say the same.

    Raises:
        MismatchedWeights: they do not (a rounded buffer, or another `rope_theta`).
    """
    text = opened.config.text_config
    theta, exponent = text.rope_parameters["rope_theta"], torch.arange(0, text.head_dim, 2) / text.head_dim
    computed = theta ** -exponent.double()
    plain = text.rope_parameters["rope_type"] == "default"
    for name, stored in opened.files.tensors(n for n in opened.files.entries if ROTARY.match(n)):
        if (plain or ".default." in name) and not (
            stored.shape == computed.shape and torch.allclose(stored.double(), computed, rtol=1e-5, atol=0)
        ):
            raise MismatchedWeights(
                f"the stored rotary frequencies are not those of rope_theta {theta:g}", where=f"{name}, config.json"
            )


def check_ids(raw: dict[str, Any], tokenizer: Tokenizer, *, where: str) -> None:
    """Compare every id of the configuration with the tokenizer, and the families with the tables.

    Raises:
        ActionIds: an action token out of order, or one about which configuration and tokenizer disagree.
        VocabularyLayout: another family is not where the network expects it.
    """
    ids, first, width = tokenizer.token_to_id, raw.get("action_token_start_id"), raw.get("num_action_tokens")
    if not isinstance(first, int) or not isinstance(width, int) or width < 1:
        raise ActionIds("config.json names no action block", where=where, remedy="it was never given action tokens")
    for i in range(width):
        if (found := ids(f"<action_{i}>")) != first + i:
            raise ActionIds(f"<action_{i}> is token {found}, the configuration puts it at {first + i}", where=where)
    named = {"action_start": first - 2, "action_end": first - 1, "action_output": ids("<action_output>")}
    for token, expected in named.items():
        found, stated = ids(f"<{token}>"), raw.get(f"{token}_token_id", expected)
        if found is None or not found == expected == stated:
            raise ActionIds(f"<{token}> is token {found}; expected {expected}, stated {stated}", where=where)
    if (stated := raw.get("eos_token_id", ids(TURN_END))) != ids(TURN_END):
        raise ActionIds(f"an answer ends with token {stated}, not with {TURN_END} ({ids(TURN_END)})", where=where)
    text = raw.get("text_config") or {}
    stated = [raw.get(key) for key in ("state_token_start_id", "image_end_token_id", "image_patch_id")]
    stated += [text.get(key, 0) for key in ("vocab_size", "additional_vocab_size")]
    numbers = [number for number in stated if isinstance(number, int)]
    if len(numbers) < len(stated):
        raise VocabularyLayout("config.json does not say where state and image tokens start", where=where)
    state, end, patch, base, extra = numbers
    layout = {f"<state_{i}>": state + i for i in range(STATE_BINS)}
    layout |= {"<im_start>": base, "<im_end>": end, "<im_patch>": patch}
    for token, expected in layout.items():
        if (found := ids(token)) != expected:
            raise VocabularyLayout(f"{token} is token {found}, the network expects it at {expected}", where=where)
    if first + width > base or max(layout.values()) >= base + extra:
        raise VocabularyLayout(
            f"the tables have {base} and {extra} rows, too few for the action block or the image tokens", where=where
        )


def check_inputs(opened: Opened) -> None:
    """Refuse prompts and pictures that are not built here.

    Raises:
        UnsupportedFeature: naming the key.
    """
    wanted = {"state_format": "discrete", "n_obs_steps": 1, "add_setup_tokens": True, "add_control_tokens": True}
    for key, value in wanted.items():
        if opened.raw.get(key, value) != value:
            raise UnsupportedFeature(
                f"{key} is {opened.raw[key]!r}, only {value!r} is built", where=str(opened.directory / CONFIG)
            )
    path = opened.directory / PROCESSOR
    if path.is_file():
        _check_pictures(opened, path)


def _check_pictures(opened: Opened, path: Path) -> None:
    """Compare a processor file with the pictures that are built: one view, no ends of rows. What it leaves out has the
    value that the release's own classes give it, which cut pictures into tiles and mark every row's end."""
    try:
        body = json.loads(path.read_text())
        stated = {**_RELEASED_PICTURES, **(body.get("image_processor") or {})}
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedFile(f"{PROCESSOR} cannot be read: {error}", where=str(path)) from error
    vision = opened.config.vision_config
    size = [*zip(("height", "width"), vision.image_size, strict=False)]
    wanted = {**_RELEASED_PICTURES, "crop_mode": "resize", "size": dict(size), "patch_size": vision.patch_size}
    for key, value in wanted.items():
        if stated[key] != value:
            raise UnsupportedFeature(
                f"pictures are made with {key} {stated[key]!r}, only {value!r} is built", where=f"{path}, {key}"
            )
    columns = body.get("use_single_crop_col_tokens")
    if columns if columns is not None else body.get("image_use_col_tokens", True):
        raise UnsupportedFeature(
            "a token ends every row of a picture, which is not built", where=f"{path}, use_single_crop_col_tokens"
        )


def check_network(opened: Opened, tokenizer: Tokenizer) -> None:
    """Every check of this module, cheapest first; see the functions for what they refuse."""
    check_heads(opened)
    check_inputs(opened)
    check_ids(opened.raw, tokenizer, where=str(opened.directory))
    check_weights(opened)
    check_rotary(opened)


def read_tokenizer(directory: Path) -> Tokenizer:
    """`tokenizer.json` of a directory.

    Raises:
        DamagedFile: it is missing or no tokenizer.
    """
    path = directory / TOKENIZER
    try:
        return Tokenizer.from_str(path.read_text())
    except Exception as error:  # tokenizers raises bare exceptions
        raise DamagedFile(f"{TOKENIZER} cannot be read: {error}", where=str(path)) from error


def load_network(opened: Opened, dtype: torch.dtype) -> Any:
    """The network in evaluation mode, its weights converted to `dtype`.

    Weights are mapped from their files and converted one by one, so that beside the network itself no more than the
    tensors of one fused projection are held in memory.

    Raises:
        MissingWeights: transformers left a weight at random (a last line of defence; `check_weights` names it first).
        DamagedFile: a weight is not finite.
    """
    from transformers import Molmo2ForConditionalGeneration

    stored = dict(opened.files.tensors(opened.network))
    with quiet_transformers():
        loaded: Any = Molmo2ForConditionalGeneration.from_pretrained(
            None, config=opened.config, state_dict=stored, dtype=dtype, output_loading_info=True
        )
    model, report = loaded
    wrong = [f"{kind} {key}" for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[kind]]
    if wrong:
        raise MissingWeights(f"{len(wrong)} weights do not fit, first: {sorted(wrong)[0]}", where=str(opened.directory))
    check_finite(((n, p.detach()) for n, p in model.named_parameters()), where=str(opened.directory))
    own_memory(model)
    return model.eval()


def _missing_of_expert(opened: Opened) -> list[str]:
    """Every block of the expert must hold what any other one holds, and there must be as many as declared."""
    blocks: dict[int, set[str]] = {}
    for name in opened.expert:
        if block := _BLOCK.search(name):
            blocks.setdefault(int(block.group(1)), set()).add(_BLOCK.sub(".blocks.{}.", name))
    settings = opened.raw.get("action_expert_config") or {}
    declared = settings.get("num_layers", len(blocks)) if isinstance(settings, dict) else None
    if not isinstance(declared, int):
        raise UnsupportedFeature("the expert's number of layers is no number", where=str(opened.directory / CONFIG))
    whole = set().union(*blocks.values())
    return [name.replace("{}", str(i)) for i in range(declared) for name in sorted(whole - blocks.get(i, set()))]
