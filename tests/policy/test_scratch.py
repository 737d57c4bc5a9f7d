"""A policy of random weights: the sizes of the release unless told otherwise, and a policy like any other."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from policy_support import TASK

from vla_rl.config.schema import ScratchPolicyConfig
from vla_rl.errors import ConfigError
from vla_rl.policy.molmo2 import TwinArchitecture, twin_config
from vla_rl.policy.policy import load_policy
from vla_rl.policy.scratch import scratch_policy
from vla_rl.policy.tokenizer import TokenIds, build_tokenizer

SMALL = {
    "image_px": 112, "patch_px": 14, "vision_width": 64, "vision_head": 32, "vision_layers": 4, "vision_read": [3, 1],
    "vision_mlp": 96, "adapter_mlp": 96, "text_width": 96, "text_layers": 2, "text_heads": 4, "text_kv_heads": 2,
    "text_head": 32, "text_mlp": 128, "base_size": 4096, "rope_theta": 1000.0,
}  # fmt: skip


def drawn(**changes):
    settings = {
        "tables": "bundled:tiny_full",
        "seed": 0,
        "dtype": "float32",
        "tf32": False,
        "task": TASK,
        "grammar": "reachable",
    }
    return scratch_policy(device="cpu", **{**settings, **SMALL, **changes})


def test_the_default_sizes_are_those_of_a_release():
    """4,869,874,640 parameters without an expert, as derived from the release's own code; it has 128 rows for image
    tokens where 14 are needed."""
    from transformers import Molmo2ForConditionalGeneration

    sizes = ScratchPolicyConfig()
    architecture = TwinArchitecture(**{f.name: getattr(sizes, f.name) for f in fields(TwinArchitecture)})
    tokenizer = build_tokenizer(TASK, 512, base_size=sizes.base_size)
    config = twin_config(architecture, tokenizer, TokenIds.of(tokenizer, 512), 512)
    with torch.device("meta"):
        model = Molmo2ForConditionalGeneration(config)
    assert sum(p.numel() for p in model.parameters()) == 4_869_874_640 - (128 - 14) * 2560
    assert model.lm_head.weight.shape == (155_648, 2560)


def test_weights_follow_from_the_seed_and_sizes_from_the_configuration():
    policy = drawn()
    assert policy.digest() == drawn().digest() != drawn(seed=1).digest()
    assert policy.outputs == 4096 and policy.prompt.image_px == 112
    text = policy.model.config.text_config
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim, text.hidden_size) == (4, 2, 32, 96)
    assert policy.model.config.adapter_config.vision_feature_layer == [3, 1]


def test_a_short_format_holds_for_every_weight_and_for_no_frequency():
    model = drawn(dtype="bfloat16").model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.language_model.rotary_emb.inv_freq.dtype == torch.float32


def test_it_is_saved_and_loaded_like_any_other(tmp_path):
    policy = drawn()
    policy.save(tmp_path)
    loaded = load_policy(checkpoint=str(tmp_path), device="cpu", serve_head="ar", task=TASK)
    assert loaded.digest() == policy.digest()


def test_products_are_those_that_were_asked_for():
    for tf32 in (True, False):
        drawn(tf32=tf32)
        assert torch.backends.cuda.matmul.allow_tf32 is tf32


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text_kv_heads": 3}, "text_kv_heads"),
        ({"text_head": 33}, "text_head"),
        ({"image_px": 57}, "patch_px"),
        ({"vision_head": 33}, "vision_head"),
        ({"vision_read": [4, 1]}, "no layer 4"),
    ],
)
def test_sizes_that_make_no_network_are_refused(changes, says):
    with pytest.raises(ConfigError, match="no network") as refused:
        drawn(**changes)
    assert says in (refused.value.remedy or "")
