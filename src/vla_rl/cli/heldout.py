"""The held-out evaluation that a training command hands to its trainer, which does not know what an evaluation is.

In: settings and seeds, then a sampler, a pool and what is known of the scene. Out: a callable that plays the seeds with
the policy as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vla_rl.config.schema import EvalConfig
from vla_rl.errors import ConfigError
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.events import OnEvent

if TYPE_CHECKING:
    from vla_rl.evals.heldout import EvalResult


def check_plain(settings: EvalConfig) -> None:
    """Refuse what only `vla-rl eval` does.

    Raises:
        ConfigError: foreign frames or traces are asked for.
    """
    if settings.frames != "own" or settings.traces:
        raise ConfigError(
            "a training run evaluates the policy with its own frames, and stores no traces",
            where="eval.frames, eval.traces",
            remedy="evaluate a checkpoint with `vla-rl eval`",
        )


def evaluation(
    settings: EvalConfig,
    seeds: Sequence[int],
    *,
    sampler: Any,
    pool: Any,
    scene: Mapping[str, Any],
    on_event: OnEvent,
) -> Callable[[], EvalResult]:
    """A callable that evaluates once, with the documented reward; the settings are read here and now."""
    from vla_rl.evals.heldout import evaluate

    slots, temperature, reward = settings.slots, settings.temperature, documented_reward()

    def play() -> EvalResult:
        return evaluate(
            sampler=sampler, pool=pool, reward=reward, seeds=seeds, temperature=temperature, slots=slots, scene=scene,
            on_event=on_event,
        )  # fmt: skip

    return play
