"""Which episodes belong to which update, what a run has used so far, and how it ended: plain frozen records.

In: a `GeometryConfig`. Out: episode specs by step. No training happens here.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.config.schema import GeometryConfig
from vla_rl.errors import ConfigError
from vla_rl.rollout.records import EpisodeSpec


@dataclass(frozen=True)
class Geometry:
    """`GeometryConfig`, frozen."""

    seeds: int
    draws: int
    temperature: float
    train_seed_base: int
    min_group_std_cm: float
    advantage_clip: float | None

    @classmethod
    def of(cls, config: GeometryConfig) -> Geometry:
        """The section as a frozen record.

        Raises:
            ConfigError: no seed, fewer than two draws of a seed, or a temperature that samples nothing.
        """
        for name, least in (("seeds", 1), ("draws", 2)):
            if getattr(config, name) < least:
                raise ConfigError(
                    f"a wave needs at least {least} {name}, not {getattr(config, name)}",
                    where=f"geometry.{name}",
                    remedy="8 seeds x 8 draws is the documented geometry; one draw has no group to stand out from",
                )
        if not config.temperature > 0:
            raise ConfigError(
                f"temperature {config.temperature} samples nothing: all draws of a seed would be alike",
                where="geometry.temperature",
                remedy="use a temperature above 0, e.g. 0.7 or 1.0",
            )
        return cls(
            config.seeds, config.draws, config.temperature,
            config.train_seed_base, config.min_group_std_cm, config.advantage_clip,
        )  # fmt: skip

    def specs(self, step: int) -> list[EpisodeSpec]:
        """The episodes of update `step` (from 1), seed-major; steps never share a seed."""
        first = self.train_seed_base + (step - 1) * self.seeds
        return [EpisodeSpec(seed, draw) for seed in range(first, first + self.seeds) for draw in range(self.draws)]

    def training_seeds(self, steps: int) -> range:
        """Every seed that a run of `steps` updates trains on."""
        return range(self.train_seed_base, self.train_seed_base + steps * self.seeds)


@dataclass(frozen=True)
class Counters:
    """What a run has used so far; part of every checkpoint, so that a resume does not forget."""

    updates_applied: int = 0
    episodes: int = 0
    env_ticks: int = 0
    predicts: int = 0
    tokens: int = 0
    device_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How `run` ended; `finished` is False when it stopped at a safe point and can be resumed."""

    step: int
    finished: bool
    reason: str
    counters: Counters
