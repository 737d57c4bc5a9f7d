"""A step decoder over a network's own forward: right for any architecture, fast for none.

In: a `VlaPolicy` whose adapter can write the network's inputs. Out: logits over the action block, prompt first, then a
token at a time, with transformers' growing cache. `vla_rl.policy.decode` is the fast one for plain Molmo2 networks.

Shapes: R rows, V bins of the action block, D text width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


def head_logits(policy: VlaPolicy, normed: Tensor) -> Tensor:
    """Logits over the action block only, float32 [..., V], of hidden states [..., D] after the final norm."""
    head, first = policy.model.get_output_embeddings(), policy.prompt.ids.action_block
    block = slice(first, first + policy.vocabulary)
    return linear(normed, head.weight[block], None if head.bias is None else head.bias[block]).float()


class CachedForward:
    """Runs one fixed batch of rows through ``policy.model``'s body.

    Args:
        policy: its weights are read at every call.
        rows: fixed number of rows, R.
    """

    def __init__(self, policy: VlaPolicy, rows: int) -> None:
        self.policy, self.rows = policy, rows
        self._cache: Any = None

    def prefill(self, frames: Tensor, state_bins_RJ: Tensor) -> Tensor:
        """Read R prompts; logits of the first action token, [R, V]."""
        inputs = self.policy.adapter.inputs(self.policy, frames, state_bins_RJ)
        # Prompts have no padding, and a mask of the prompt's length would not fit the steps.
        inputs.pop("attention_mask", None)
        return self._forward(inputs)

    def step(self, bins_R: Tensor) -> Tensor:
        """Feed one bin a row; logits of the next, [R, V]."""
        return self._forward({"input_ids": bins_R[:, None] + self.policy.prompt.ids.action_block, "cache": self._cache})

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        out = self.policy.model.base_model(**inputs, use_cache=True)
        self._cache = out.cache
        return head_logits(self.policy, out.last_hidden_state[:, -1])
