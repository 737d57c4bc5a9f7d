"""What an update did, as its row and the wires are told."""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.rl.loss import RatioStats


@dataclass(frozen=True)
class UpdateResult:
    """What an update did.

    Attributes:
        rows, tokens: how many went through a gradient pass.
        loss: value of the objective in the last pass (0 on-policy with centred advantages, while the gradient is not);
            None without rows.
        loss_finite: False where a loss was no number.
        finite: False where a loss or gradient was no number, in any pass; the wire `non_finite` judges it.
        grad_norm: total norm before clipping, of the last pass; None without rows or when the loss was not finite.
        step_skipped: the optimiser did not step in some pass: nothing to learn from, or a loss or gradient that was not
            finite.
        ratios: `mean_ratio`, `min_ratio`, `max_ratio`, `clip_fraction`, `approx_kl` of the last pass.
        rollout_gap: largest |trainer - sampler| log-probability over the tokens used, in the first pass.
        anchor_k3: mean k3 estimate of KL(live || anchor) over those tokens, before the update; None without a KL term.
        entropy: mean entropy a token in nats, under the grammar mask and temperature, in the first pass.
        chosen_nll: mean over rows of the row's mean sampled -log-probability at rollout time.
        rolled_back: the update went too far and was undone.
        optimizer_steps: how often the weights were moved; fewer than the passes if some were skipped.
        oom_retries: gradient passes that ran out of memory and were repeated in halved micro-batches; 0 or 1.
    """

    rows: int
    tokens: int
    loss: float | None
    loss_finite: bool
    finite: bool
    grad_norm: float | None
    step_skipped: bool
    ratios: dict[str, float | None]
    rollout_gap: float | None
    anchor_k3: float | None
    entropy: float | None
    chosen_nll: float | None
    optimizer_steps: int
    rolled_back: bool = False
    oom_retries: int = 0

    @property
    def moved(self) -> bool:
        """Whether the weights are others than before."""
        return self.optimizer_steps > 0 and not self.rolled_back


def no_update() -> UpdateResult:
    """The result of a step that has no update."""
    return UpdateResult(0, 0, None, True, True, None, True, RatioStats().summary(), None, None, None, None, 0)
