"""A policy in the sizes of a release whose weights have shapes and no numbers: what can be counted without a device."""

from __future__ import annotations

from dataclasses import fields

import torch
from transformers import Molmo2ForConditionalGeneration

from vla_rl.config.schema import ScratchPolicyConfig
from vla_rl.policy.hub import resolve
from vla_rl.policy.molmo2 import TwinArchitecture, twin_config
from vla_rl.policy.parts import read_parts
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.sources import Sources
from vla_rl.policy.tokenizer import TokenIds, build_tokenizer

SIZES = ScratchPolicyConfig()


class OnPaper(VlaPolicy):
    """Tensors of the prompt are real, those of the network are not."""

    def to(self, device: str) -> OnPaper:
        self.device = device
        self.prompt = self.adapter.prompt(self)
        return self


def release_on_paper() -> OnPaper:
    """With the tables and the codec of `policy=scratch`."""
    parts = read_parts(resolve(SIZES.tables, None, where="", pin=""), Sources(None, None, None, None))
    sizes = {f.name: getattr(SIZES, f.name) for f in fields(TwinArchitecture)}
    architecture = TwinArchitecture(**{**sizes, "vision_read": tuple(SIZES.vision_read)})
    tokenizer = build_tokenizer(SIZES.task, parts.codec.vocabulary, base_size=SIZES.base_size)
    ids = TokenIds.of(tokenizer, parts.codec.vocabulary)
    with torch.device("meta"):
        model = Molmo2ForConditionalGeneration(twin_config(architecture, tokenizer, ids, parts.codec.vocabulary))
    return OnPaper(
        model=model.eval(), tokenizer=tokenizer, codec=parts.codec, stats=parts.tables.stats, task=SIZES.task,
        device="cpu",
    )  # fmt: skip
