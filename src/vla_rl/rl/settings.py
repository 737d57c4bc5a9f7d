"""The constants of an update, checked, from the `loss` and `optim` sections of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vla_rl.errors import ConfigError
from vla_rl.rl.lessons import BatchLimits
from vla_rl.rl.loss import Objective, TokenLoss, episode_weights, grpo_loss

RESCORED, RECORDED = OLD_LOGP = ("rescored", "recorded")
IN_LOSS, IN_REWARD = KL_PLACES = ("loss", "reward")


@dataclass(frozen=True)
class UpdateSettings:
    """Constants of an update; names and meanings as in the `loss` and `optim` configuration.

    `old_logp`: ``rescored`` takes the old log-probabilities from the trainer's own forward pass. In a first gradient
    pass that is the live pass itself, so the ratio is exactly 1 and clipping is inactive by design; further epochs keep
    it. ``recorded`` takes what the sampler stored.
    """

    objective: Objective
    weighting: str
    episode_tokens: int
    old_logp: str
    epochs: int
    max_first_gap: float
    lr: float
    warmup_steps: int
    decay_after: int | None
    grad_clip: float
    limits: BatchLimits
    token_loss: TokenLoss = grpo_loss

    @classmethod
    def of(cls, loss: Any, optim: Any, token_loss: TokenLoss = grpo_loss) -> UpdateSettings:
        """From a `LossConfig` and an `OptimConfig` (vla_rl.config.schema), and what computes the loss of them.

        Raises:
            ConfigError: an unknown choice, a band that does not bracket 1, or a micro-batch of no rows.
        """
        if loss.old_logp not in OLD_LOGP:
            raise ConfigError(
                f"no old_logp {loss.old_logp!r}", where="loss.old_logp", remedy="use rescored or recorded"
            )
        if loss.kl_in not in KL_PLACES:
            raise ConfigError(f"no place {loss.kl_in!r}", where="loss.kl_in", remedy="use loss or reward")
        if loss.trust_region is not None and not loss.kl_rows:
            raise ConfigError(
                "a trust region needs rows to measure an update on",
                where="loss.trust_region, loss.kl_rows",
                remedy="use loss.kl_rows=32, or loss.trust_region=null",
            )
        for value, where in ((optim.microbatch_rows, "optim.microbatch_rows"), (loss.epochs, "loss.epochs")):
            if value < 1:
                raise ConfigError(f"{value} is less than one", where=where)
        episode_weights([1], loss.weighting)
        objective = Objective(
            clip_low=loss.clip_low,
            clip_high=loss.clip_high,
            ratio=loss.ratio,
            dual_clip=loss.dual_clip,
            kl_beta=loss.kl_beta if loss.kl_in == IN_LOSS else 0.0,
            kl_estimator=loss.kl_estimator,
            entropy_bonus=loss.entropy_bonus,
        )
        return cls(
            objective, loss.weighting, loss.episode_tokens, loss.old_logp, loss.epochs, loss.max_first_gap,
            optim.lr, optim.warmup_steps, optim.decay_after, optim.grad_clip,
            BatchLimits(optim.microbatch_rows, optim.microbatch_tokens), token_loss,
        )  # fmt: skip

    @property
    def ratio_moves(self) -> bool:
        """Whether a token's ratio can be another than 1."""
        return self.old_logp == RECORDED or self.epochs > 1

    def lr_at(self, step: int) -> float:
        """Learning rate of update `step` (from 1): a linear rise over the warm-up, then constant, or falling.

        The fall is that of stochastic approximation (Robbins and Monro, 1951): what the waves agree on goes on adding
        up, what is chance in each averages out. It depends on the step alone, so a run that is given more steps later
        is the same run.
        """
        rise = min(1.0, step / self.warmup_steps) if self.warmup_steps > 0 else 1.0
        return self.lr * rise * min(1.0, (self.decay_after or step) / step)
