"""One episode, recorded at every tick: what was seen before the tick, what was commanded, what came of it.

In: an environment that somebody acts on tick by tick (the scripted expert, or a stored rollout that is replayed). Out:
`RecordedEpisode`, and its rows as an Arrow table in the columns of `lerobot`. Pictures become PNG as they are taken, so
that an episode in memory is small. Who acts is not decided here, nor which episodes are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from vla_rl.policy.prompt import CAMERAS
from vla_rl.rl.reward import RewardV2, documented_reward, tick_terms
from vla_rl.rollout.worker import see
from vla_rl.sft import lerobot
from vla_rl.sft.feature_stats import picture_histogram


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of T ticks.

    Attributes:
        pictures: per camera the PNG bytes seen before each tick.
        histograms: int64 [camera, 3, 256], pixels of each level over the whole episode.
        state_deg: float64 [T, 6], measured before each tick.
        targets_deg: float64 [T, 6], the clean joint targets of each tick.
        taught_T: bool [T], False for ticks that nobody should imitate.
        trace: T + 1 samples, index 0 after reset.
        metrics: flat metrics of the episode.
        seed, draw, step: environment seed; draw and training step of a rollout (0 for the expert).
        noisy, missed: how the expert was disturbed.
        failure: why the episode is no success, or None.
    """

    pictures: dict[str, list[bytes]]
    histograms: np.ndarray
    state_deg: np.ndarray
    targets_deg: np.ndarray
    taught_T: np.ndarray
    trace: list[Any]
    metrics: Mapping[str, Any]
    seed: int
    draw: int
    step: int
    noisy: bool
    missed: bool
    failure: str | None

    def __len__(self) -> int:
        return len(self.targets_deg)


class _Tape:
    """What has been recorded since an episode began."""

    def __init__(self, settled: Any) -> None:
        self.pictures: dict[str, list[bytes]] = {camera: [] for camera in CAMERAS}
        self.histograms = np.zeros((len(CAMERAS), 3, 256), np.int64)
        self.state_deg: list[np.ndarray] = []
        self.commanded_deg: list[np.ndarray] = []
        self.trace: list[Any] = [settled]


class TickRecorder:
    """An environment that remembers what was seen before each tick; everything else is the environment's own.

    Args:
        env: has `begin`, `tick`, `observe` and `last_sample`, as `vla_rl.sim.env.BoatToDisk`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, seed: int, arm_deg: np.ndarray | None = None) -> Any:
        """Begin an episode and a recording."""
        spawn = self._env.begin(seed, arm_deg)
        self._tape = _Tape(self._env.last_sample)
        return spawn

    def tick(self, target_deg: np.ndarray) -> bool:
        """Record what is seen now, then act.

        Raises:
            RolloutError: a picture of one single colour or a state that is not finite.
        """
        seen, tape = see(self._env.observe()), self._tape
        for index, (camera, picture) in enumerate(zip(CAMERAS, seen.frames, strict=True)):
            tape.pictures[camera].append(lerobot.encode_png(picture))
            tape.histograms[index] += picture_histogram(picture)
        tape.state_deg.append(seen.state_deg)
        tape.commanded_deg.append(np.array(target_deg, dtype=np.float64))
        ended = self._env.tick(target_deg)
        tape.trace.append(self._env.last_sample)
        return ended

    def recorded(self, *, taught_T: np.ndarray, targets_deg: np.ndarray | None = None, **facts: Any) -> RecordedEpisode:
        """The episode since `begin`.

        Args:
            taught_T: bool [T].
            targets_deg: float64 [T, 6], the clean targets; None if those that were executed are.
            facts: `seed`, `draw`, `step`, `noisy`, `missed` and `failure` of the episode.
        """
        tape = self._tape
        return RecordedEpisode(
            pictures=tape.pictures,
            histograms=tape.histograms,
            state_deg=np.stack(tape.state_deg),
            targets_deg=np.stack(tape.commanded_deg) if targets_deg is None else targets_deg,
            taught_T=taught_T,
            trace=tape.trace,
            metrics=self._env.metrics().as_dict(),
            **facts,
        )


def episode_table(episode: RecordedEpisode, schema: pa.Schema) -> pa.Table:
    """The rows of an episode; the columns that count over the whole dataset count from 0 until they are merged."""
    ticks = len(episode)
    zeros, count = np.zeros(ticks, np.int64), np.arange(ticks)
    columns: dict[str, Any] = {
        lerobot.STATE: lerobot.joint_rows(episode.state_deg),
        lerobot.ACTION: lerobot.joint_rows(episode.targets_deg),
        "timestamp": (count / lerobot.FPS).astype(np.float32),
        "frame_index": count,
        "episode_index": zeros,
        "index": count,
        "task_index": zeros,
        "next.done": count == ticks - 1,
        "taught": episode.taught_T,
        "seed": np.full(ticks, episode.seed, np.int64),
        **_outcomes(episode, count),
    }
    for name, camera in zip(lerobot.PICTURES, CAMERAS, strict=True):
        data = pa.array(episode.pictures[camera], pa.binary())
        path = pa.array([f"frame-{tick:06d}.png" for tick in range(ticks)])
        columns[name] = pa.StructArray.from_arrays([data, path], ["bytes", "path"])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _outcomes(episode: RecordedEpisode, count: np.ndarray) -> dict[str, np.ndarray]:
    """Reward terms of both documented rewards (cm), their v1 sum, and whether success was reached by then."""
    metrics = episode.metrics
    passed = [tick for tick in (metrics["strict_tick"], metrics["success_tick"]) if tick is not None]
    success_tick = passed[0] if passed and metrics["success"] else None
    v2 = RewardV2(success_bonus=10.0, tip_penalty=2.0, strike_penalty=5.0, shove_penalty=0.5)
    v1_terms, v2_terms = (
        tick_terms(episode.trace, success_tick=success_tick, reset_strikes=metrics["reset_strikes"], reward=reward)
        for reward in (documented_reward(), v2)
    )
    terms = {f"reward.{name}": value.astype(np.float32) for name, value in (v2_terms | v1_terms).items()}
    reached = np.zeros(len(count), bool) if success_tick is None else count >= success_tick
    return {**terms, "next.reward": np.sum(list(v1_terms.values()), axis=0).astype(np.float32), "next.success": reached}
