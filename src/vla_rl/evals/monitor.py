"""The evaluation inside a training, by RL or supervised; of an RL run a component that one of its own may replace.

In: what plays (a sampler and a pool that follow the policy's weights), which seeds, at what temperature. Out: a
callable that a trainer calls with the number of updates done, and that answers with rows for the run's files. Scored
with the documented reward, whatever the run trains on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_rl.evals.heldout import evaluate
from vla_rl.rl.reward import documented_reward
from vla_rl.rl.summary import Evaluation, episode_row
from vla_rl.rollout.events import OnEvent, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.wave import Sampler


class HeldOut:
    """Every held-out seed once, sealed.

    Args:
        sampler, pool: play the episodes.
        seeds, temperature, slots: of the `eval` section.
        scene: what the simulator says of itself, and whether the policy was trained in it; goes into the summary.
        on_event: progress.
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        pool: Pool,
        seeds: Sequence[int],
        temperature: float,
        slots: int,
        scene: Mapping[str, Any],
        on_event: OnEvent = ignore,
    ) -> None:
        self._reward = documented_reward()
        self._how: dict[str, Any] = {
            "sampler": sampler, "pool": pool, "seeds": seeds, "temperature": temperature, "slots": slots,
            "scene": scene, "on_event": on_event,
        }  # fmt: skip

    def __call__(self, step: int) -> Evaluation:
        """Evaluate the policy as it is now, after `step` updates."""
        result = evaluate(reward=self._reward, **self._how)
        rows = (episode_row("eval", step, e, self._reward.terms(e.metrics)) for e in result.episodes)
        return Evaluation(result.summary, tuple(rows))
