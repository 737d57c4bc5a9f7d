"""What a policy asks of a network, whatever its architecture.

In: nothing; these are the protocols. Out: `Adapter`, the seam between `VlaPolicy` and a family of networks, and
`StepDecoder`, the seam between the sampler and a key-value cache. Everything above (grammar, codec, sampler, losses,
trainer) knows these two alone. `vla_rl.policy.molmo2_adapter` is the one for Molmo2, `vla_rl.policy.hf_adapter` serves
other image-text-to-text models of transformers; docs/policies.md says how to add one.

Shapes: B rows, R rows of a fixed batch, U different prompts, C cameras, J joints, T action tokens, V bins of the action
block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from vla_rl.policy.tokenizer import TokenIds

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


class Prompt(Protocol):
    """The fixed prompt of one task, on the device of its network."""

    @property
    def ids(self) -> TokenIds:
        """Where the token families start; `ids.action_block` is the id of bin 0."""
        ...

    @property
    def length(self) -> int:
        """Tokens before the first sampled one, the fed ``<action_start>`` included."""
        ...


class StepDecoder(Protocol):
    """One fixed batch of rows, from prompt to logits, one token at a time; weights are read at every `prefill`.

    One that holds much memory says how much as `nbytes`.
    """

    policy: VlaPolicy

    def width(self, rows: int) -> int:
        """Rows to fill a batch of `rows` up to, so that a row's result does not depend on how many there are."""
        ...

    def narrowed(self, rows: int) -> StepDecoder:
        """A decoder of `rows` rows, a `width`, in this one's memory."""
        ...

    def prefill(self, frames: Tensor, state_bins_UJ: Tensor, prompt_of_R: Sequence[int] | None = None) -> Tensor:
        """Read U prompts for R rows; logits of the first token, float32 [R, V].

        Args:
            frames: uint8 [U, C, height, width, 3].
            state_bins_UJ: integer [U, J].
            prompt_of_R: which prompt each row has; by default row r has prompt r, and U is R.
        """
        ...

    def step(self, chosen_R: Tensor) -> Tensor:
        """Feed one bin a row (one id, when unconstrained); logits of the next token, float32 [R, V]."""
        ...


class Adapter(Protocol):
    """One family of networks.

    Attributes:
        text_parameters: prefixes of the parameter names of the decoder, its embedding and its head.
        token_tables: parameter names of the tables that have one row a token (embedding, head).
        can_recompute: whether `logits` heeds `VlaPolicy.recompute`.

    One may have a method more, `fed_ids(policy)`: sorted ids, int64 on the policy's device, that `logits` can feed. It
    promises that `logits` looks tokens up in the network's input embedding and reads the head by
    `vla_rl.policy.rowgradients.read_rows`; the two tables then take gradients and moments of such rows alone. Another,
    `cached_numbers(policy, rows, unconstrained)`, tells a memory plan how many keys and values its decoder holds.
    """

    @property
    def text_parameters(self) -> tuple[str, ...]: ...

    @property
    def token_tables(self) -> tuple[str, ...]: ...

    @property
    def can_recompute(self) -> bool: ...

    def prompt(self, policy: VlaPolicy) -> Prompt:
        """The prompt of the policy's task as tensors on its device, with whatever else the other methods read."""
        ...

    def inputs(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor) -> dict[str, Tensor]:
        """Keyword arguments for the network's own forward: the prompts up to and with ``<action_start>``."""
        ...

    def logits(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor) -> Tensor:
        """Teacher-forced logits over the action block, float32 [B, T, V], differentiable.

        Token t is predicted from the prompt and the bins before it, so right padding changes no real token.

        Args:
            frames: uint8 [B, C, height, width, 3].
            state_bins_BJ: integer [B, J].
            bins_BT: integer [B, T]; the last column is predicted but not fed.
        """
        ...

    def decoder(self, policy: VlaPolicy, rows: int, *, unconstrained: int | None = None) -> StepDecoder:
        """A decoder of `rows` rows that gives what `logits` gives, token by token.

        Args:
            unconstrained: None for the action block. A number gives all ids that the network can predict instead (V is
                then their count), from before ``<action_start>`` on, with room for that many tokens.
        """
        ...

    def stored_tensors(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of a network under the name that checkpoint files give it."""
        ...

    def save_network(self, policy: VlaPolicy, directory: Path) -> None:
        """Write `config.json` and the weights of a policy's network, and of its action expert if there is one."""
        ...

    def parameters(self) -> dict[str, Any] | None:
        """What `checkpoint.json` must say for the adapter to be made again; None for Molmo2."""
        ...
