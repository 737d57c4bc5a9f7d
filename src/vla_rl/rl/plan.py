"""Which episodes belong to which update, what a run has used so far, how it ended: frozen records.

In: a `GeometryConfig`. Out: episode specs by step. No training happens here.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.config.schedule import step_seeds, training_seeds
from vla_rl.config.schema import GeometryConfig
from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import GroupRule
from vla_rl.rollout.records import EpisodeSpec


@dataclass(frozen=True)
class Geometry:
    """`GeometryConfig`, frozen."""

    seeds: int
    draws: int
    temperature: float
    train_seed_base: int
    refill: int
    rule: GroupRule
    credit: str
    shuffle_advantages: bool

    @classmethod
    def of(cls, config: GeometryConfig) -> Geometry:
        """The section as a frozen record.

        Raises:
            ConfigError: no seed, fewer than two draws of a seed, or a temperature that samples nothing.
        """
        if config.seeds < 1:
            raise ConfigError(
                f"a wave needs at least 1 seed, not {config.seeds}",
                where="geometry.seeds",
                remedy="8 seeds x 8 draws is the documented geometry",
            )
        if not config.temperature > 0:
            raise ConfigError(
                f"temperature {config.temperature} samples nothing: all draws of a seed would be alike",
                where="geometry.temperature",
                remedy="use a temperature above 0, e.g. 0.7 or 1.0",
            )
        rule = GroupRule(
            draws=config.draws,
            estimator=config.advantage,
            min_group_std=config.min_group_std_cm,
            clip=config.advantage_clip,
            min_success_rate=config.min_success_rate,
            max_success_rate=config.max_success_rate,
        )
        return cls(
            config.seeds, config.draws, config.temperature, config.train_seed_base, config.refill, rule, config.credit,
            config.shuffle_advantages,
        )  # fmt: skip

    @property
    def most_seeds(self) -> int:
        """Seeds that are set aside for a step."""
        return step_seeds(self.seeds, self.refill)

    def specs(self, step: int, groups: int | None = None, used: int = 0) -> list[EpisodeSpec]:
        """Episodes of update `step` (from 1), seed-major; steps never share a seed.

        Args:
            groups: how many seeds; None for those of the first wave.
            used: seeds of this step that earlier waves took.
        """
        first = self.train_seed_base + (step - 1) * self.most_seeds + used
        last = first + (self.seeds if groups is None else groups)
        return [EpisodeSpec(seed, draw) for seed in range(first, last) for draw in range(self.draws)]

    def training_seeds(self, steps: int) -> range:
        """Every seed that a run of `steps` updates may train on."""
        return training_seeds(self.train_seed_base, self.seeds, self.refill, steps)


@dataclass(frozen=True)
class Counters:
    """What a run has used so far; part of every checkpoint, so that a resume does not forget.

    `device_s` are seconds that the run has held its device, `more_device_s` those of further devices beside it, added
    up.
    """

    updates_applied: int = 0
    episodes: int = 0
    env_ticks: int = 0
    predicts: int = 0
    tokens: int = 0
    device_s: float = 0.0
    more_device_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How `run` ended; `finished` is False when it stopped at a safe point and can be resumed."""

    step: int
    finished: bool
    reason: str
    counters: Counters
