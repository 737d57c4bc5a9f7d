"""Decoding as the released code does it: the most likely id of the whole vocabulary, unconstrained, until EOS.

In: prompts. Out: the bins of each answer, or why they are no chunk. The answer starts with ``<action_start>``, which
the network has to write itself; bins are read between the first ``<action_start>`` (or the beginning) and the first
``<action_end>`` after it (or the end), other ids in between are dropped, and so are bins that the codec has not
learned. An answer whose symbols are not exactly a chunk's makes the release execute an all-zero normalised chunk (the
middle of every joint's range: a large move, not a stop). An answer without any bin or without EOS makes it raise an
error; here that is a zero chunk too, counted under its own name, so that an episode can go on. Unlike the release's
own loop, rows of a batch end independently.

Only greedy: there is no temperature in the release. A network that was trained on the action block alone (the bundled
twin) has never learned to write the scaffold, and fails here.

Shapes: R rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_rl.policy.adapter import StepDecoder
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.tokenizer import TURN_END, TokenIds

STEPS_PER_TICK = 16  # the release stops after 16 tokens a tick of the horizon
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Answer:
    """One unconstrained answer.

    Attributes:
        bins: int16 [token] in the span, unlearned ones included.
        logp: float32 [token], their log-probabilities over the whole vocabulary.
        fault: why they are no chunk (`UNFINISHED` or one of `vla_rl.policy.fast.STREAM_FAULTS`), or None.
    """

    bins: np.ndarray
    logp: np.ndarray
    fault: str | None


def longest_answer(policy: VlaPolicy) -> int:
    """Tokens after which the release gives up."""
    return STEPS_PER_TICK * policy.horizon


@torch.no_grad()
def unconstrained_answers(
    policy: VlaPolicy, decoder: StepDecoder, frames: Tensor, state_bins_UJ: Tensor, prompt_of_R: Sequence[int]
) -> list[Answer]:
    """One answer per row.

    Args:
        decoder: over the whole vocabulary, with room for `longest_answer`.
        frames, state_bins_UJ, prompt_of_R: see `StepDecoder.prefill`.
    """
    logits, chosen, logps = decoder.prefill(frames, state_bins_UJ, prompt_of_R), [], []
    eos, longest = policy.tokenizer.token_to_id(TURN_END), longest_answer(policy)
    ended_R = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    while True:
        best_R = logits.argmax(-1)
        chosen.append(best_R)
        logps.append(logits.log_softmax(-1).gather(1, best_R[:, None]).squeeze(1))
        ended_R |= best_R == eos
        if bool(ended_R.all()) or len(chosen) == longest:
            break
        logits = decoder.step(best_R)
    ids_RT, logp_RT = torch.stack(chosen, 1).cpu().numpy(), torch.stack(logps, 1).cpu().numpy()
    return [read_answer(policy, ids, logp, eos) for ids, logp in zip(ids_RT, logp_RT, strict=True)]


def read_answer(policy: VlaPolicy, ids_T: np.ndarray, logp_T: np.ndarray, eos: int) -> Answer:
    """What the ids of one row mean; those after its EOS are nobody's."""
    ends = np.flatnonzero(ids_T == eos)
    said = ids_T[: ends[0]] if len(ends) else ids_T
    kept = span(said, policy.prompt.ids, policy.vocabulary)
    bins = (said[kept] - policy.prompt.ids.action_block).astype(np.int16)
    fault = policy.codec.fault(bins) if len(ends) else UNFINISHED
    return Answer(bins, logp_T[: len(said)][kept], fault)


def span(ids_T: np.ndarray, ids: TokenIds, width: int) -> np.ndarray:
    """Positions of the action bins that an answer means, int64 [bin]."""
    starts = np.flatnonzero(ids_T == ids.action_start)
    first = starts[0] + 1 if len(starts) else 0
    ends = np.flatnonzero(ids_T[first:] == ids.action_block - 1)
    last = first + ends[0] if len(ends) else len(ids_T)
    inside = (ids_T >= ids.action_block) & (ids_T < ids.action_block + width)
    return np.flatnonzero(inside[first:last]) + first
