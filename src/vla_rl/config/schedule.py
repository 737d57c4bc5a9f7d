"""Which seeds a training run may train on and after which updates it is evaluated, from its configuration alone.

In: constants of the sections `geometry` and `eval`. Out: ranges and sets. The trainer plays by these, and a
registration is checked against them before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from vla_rl.errors import ConfigError


def step_seeds(seeds: int, refill: int) -> int:
    """Seeds that are set aside for a step: those of its first wave, and of as many further ones as it may play."""
    return seeds * (1 + refill)


def training_seeds(train_seed_base: int, seeds: int, refill: int, steps: int) -> range:
    """Every seed that a run of `steps` updates may train on."""
    return range(train_seed_base, train_seed_base + steps * step_seeds(seeds, refill))


def evaluation_steps(steps: int, every: int | None, at_steps: Sequence[int]) -> frozenset[int]:
    """After which updates of a run of `steps` the policy is evaluated: 0, the last, every `every` and those named.

    Raises:
        ConfigError: a named one is not among the run's.
    """
    if beyond := [step for step in at_steps if not 0 <= step <= steps]:
        raise ConfigError(
            f"there is no update {beyond[0]} in a run of {steps}", where="eval.at_steps", remedy=f"use 0 to {steps}"
        )
    return frozenset({0, steps, *at_steps, *(range(every, steps, every) if every else ())})
