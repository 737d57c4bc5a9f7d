"""A step decoder over a network's own forward: right for any architecture, fast for none.

In: a `VlaPolicy` whose adapter can write the network's inputs. Out: logits over the action block, or over everything
that the network can predict, prompt first, then a token at a time, with transformers' growing cache.
`vla_rl.policy.decode` is the fast one for plain Molmo2 networks; equal prompts are not shared here.

Shapes: R rows, U different prompts, V bins of the action block or ids of the vocabulary, D text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import linear

from vla_rl.policy.rowgradients import read_rows

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


def action_columns(policy: VlaPolicy) -> slice:
    """The ids of the action block."""
    first = policy.prompt.ids.action_block
    return slice(first, first + policy.vocabulary)


def answer(policy: VlaPolicy, unconstrained: int | None) -> tuple[slice, int]:
    """The ids that a decoder gives logits of, and how many prompt tokens it reads before the first of them; see
    `vla_rl.policy.adapter.Adapter.decoder`."""
    if unconstrained is None:
        return action_columns(policy), policy.prompt.length
    return slice(0, policy.outputs), policy.prompt.length - 1  # it has to write <action_start> itself


def head_logits(policy: VlaPolicy, normed: Tensor, columns: slice) -> Tensor:
    """Logits over some ids, float32 [..., V], of hidden states [..., D] after the final norm."""
    head = policy.model.get_output_embeddings()
    return linear(normed, read_rows(head.weight, columns), None if head.bias is None else head.bias[columns]).float()


class CachedForward:
    """Runs one fixed batch of rows through ``policy.model``'s body.

    Args:
        policy: its weights are read at every call.
        rows: fixed number of rows, R.
        unconstrained: see `vla_rl.policy.adapter.Adapter.decoder`; the cache grows, so the number does not matter.
    """

    def __init__(self, policy: VlaPolicy, rows: int, *, unconstrained: int | None = None) -> None:
        self.policy, self.rows = policy, rows
        self._columns, self._fed = answer(policy, unconstrained)
        self._cache: Any = None

    def width(self, rows: int) -> int:
        """All rows: nothing is known of how this network rounds."""
        return self.rows

    def narrowed(self, rows: int) -> CachedForward:
        """This very decoder."""
        return self

    def prefill(self, frames: Tensor, state_bins_UJ: Tensor, prompt_of_R: Sequence[int] | None = None) -> Tensor:
        """Read the prompts of R rows; logits of the first token, [R, V]."""
        if prompt_of_R is not None:
            frames, state_bins_UJ = frames[list(prompt_of_R)], state_bins_UJ[list(prompt_of_R)]
        inputs = self.policy.adapter.inputs(self.policy, frames, state_bins_UJ)
        # Prompts have no padding, and a mask of the prompt's length would not fit the steps.
        inputs.pop("attention_mask", None)
        for key in ("input_ids", "mm_token_type_ids"):
            if key in inputs:
                inputs[key] = inputs[key][:, : self._fed]
        return self._forward(inputs)

    def step(self, chosen_R: Tensor) -> Tensor:
        """Feed one bin (or id) a row; logits of the next, [R, V]."""
        return self._forward({"input_ids": chosen_R[:, None] + self._columns.start, "cache": self._cache})

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        out = self.policy.model.base_model(**inputs, use_cache=True)
        self._cache = out.cache
        return head_logits(self.policy, out.last_hidden_state[:, -1], self._columns)
