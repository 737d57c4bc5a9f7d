"""Gates: what a run has to show before it may spend: an idle GPU, a policy that acts, serving parity, mixed groups.

In: the `gates` section, facts of the device, greedy episodes, a parity read that the caller makes, the first wave. Out:
one `GateResult` a gate with what was measured and what was asked for; it is the trainer that records it and stops. The
gates that every run passes (dry update, render canary, room on the disk) are in `preflight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vla_rl.config.schema import GatesConfig
from vla_rl.errors import ConfigError, StoppedRun
from vla_rl.rl.device import DeviceFacts, device_facts
from vla_rl.rl.summary import Evaluation
from vla_rl.rollout.events import OnEvent, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.rollout.rounds import Sampler
from vla_rl.rollout.wave import run_wave

# Given the first evaluation; returns `passed`, `successes_difference`, `interacted_difference` (of shares), `identical`
# (seeds) and `bounds`, JSON-able.
ParityRead = Callable[[Evaluation], Mapping[str, Any]]
IDLE, INTERACTION, PARITY, MIXED = "idle_device", "interaction", "parity", "mixed_groups"


@dataclass(frozen=True)
class GateResult:
    """What a gate found.

    Attributes:
        gate: its name.
        passed: whether the run may go on.
        measured: JSON-able; what was found.
        bar: JSON-able; what was asked for.
    """

    gate: str
    passed: bool
    measured: dict[str, Any]
    bar: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """As an entry of `gates` in the manifest."""
        return asdict(self)

    def error(self, where: str) -> StoppedRun:
        """What ends the run if it was not passed."""
        return StoppedRun(
            f"the gate {self.gate} is not passed: measured {_told(self.measured)}; asked for {_told(self.bar)}",
            where=where,
            remedy=_REMEDIES[self.gate],
        )


_REMEDIES = {
    IDLE: "wait for the GPU, or choose another one with CUDA_VISIBLE_DEVICES; nothing was spent",
    INTERACTION: "the policy does not touch the boat: compare its training scene, joint frame and normalisation with "
    "this run's (`vla-rl eval` tells); nothing else was spent",
    PARITY: "two ways of serving one policy disagree; find out which one is wrong before training on either",
    MIXED: "groups that all fail or all succeed teach nothing: another base policy, temperature or number of draws; "
    "the wave is kept and no weight has moved",
}


class Gates:
    """The gates of one run.

    Args:
        gates: constants (vla_rl.config.schema); all are read here and now.
        parity: holds the run's first evaluation against what another serving path left; None for no such gate.
    """

    def __init__(self, gates: GatesConfig, parity: ParityRead | None = None) -> None:
        self._mixed_frac, self._probe_episodes = gates.mixed_frac, gates.interaction_episodes
        self._idle_bar = {"foreign_gib": gates.idle_max_foreign_gib, "free_gib": gates.idle_min_free_gib}
        self._idle, self._read = gates.idle_device, parity

    def device(self, device: str) -> Iterator[GateResult]:
        """The idle-device gate, before this run spends anything on the device but its weights."""
        if self._idle:
            yield judge_idle(device_facts(device), **self._idle_bar)

    def policy(
        self,
        sampler: Sampler,
        pool: Pool,
        seeds: Sequence[int],
        slots: int,
        passed: Sequence[str],
        on_event: OnEvent = ignore,
    ) -> Iterator[GateResult]:
        """Interaction, before the first evaluation and wave.

        Args:
            seeds: training seeds, for the greedy episodes.
            passed: gates that an earlier launch of the run has passed.
            on_event: progress.
        """
        if self._probe_episodes and seeds and INTERACTION not in passed:
            specs = [EpisodeSpec(seed) for seed in seeds[: self._probe_episodes]]
            probe = run_wave(
                sampler=sampler, pool=pool, specs=specs, temperature=0.0, slots=min(slots, len(specs)), keep_rows=False,
                on_event=on_event,
            )  # fmt: skip
            yield judge_interaction(probe.episodes)

    def first_evaluation(self, evaluation: Evaluation, passed: Sequence[str]) -> Iterator[GateResult]:
        """Parity, of the evaluation before the first wave.

        Args:
            passed: gates that an earlier launch of the run has passed.
        """
        if self._read and PARITY not in passed:
            verdict = self._read(evaluation)
            measured = {name: verdict[f"{name}_difference"] for name in ("successes", "interacted")}
            measured["identical"] = verdict["identical"]
            yield GateResult(PARITY, verdict["passed"], measured, verdict["bounds"])

    def first_wave(self, mixed_groups_frac: float | None) -> Iterator[GateResult]:
        """The mixed-groups gate, between the first wave and its update."""
        if self._mixed_frac is not None:
            share = mixed_groups_frac
            bar = {"mixed_groups_frac": self._mixed_frac}
            passed = share is not None and share >= self._mixed_frac
            yield GateResult(MIXED, passed, {"mixed_groups_frac": share}, bar)


def judge_idle(facts: DeviceFacts | None, *, foreign_gib: float, free_gib: float) -> GateResult:
    """Enough memory is free, others hold little of it, and no other process computes there; passed without a GPU."""
    bar = {"foreign_gib": foreign_gib, "free_gib": free_gib, "foreign_processes": 0}
    if facts is None:
        return GateResult(IDLE, True, {"foreign_gib": None, "free_gib": None, "foreign_processes": None}, bar)
    measured = asdict(facts)
    passed = facts.foreign_gib <= foreign_gib and facts.free_gib >= free_gib and not facts.foreign_processes
    return GateResult(IDLE, passed, measured, bar)


def judge_interaction(episodes: Sequence[Episode]) -> GateResult:
    """At least one episode moved the boat."""
    moved = [episode.metrics.get("interacted") for episode in episodes]
    if None in moved:
        raise ConfigError(
            "the simulator does not tell whether an episode moved anything (metric `interacted`)",
            where="gates.interaction_episodes",
            remedy="use gates.interaction_episodes=0 with this simulator",
        )
    interacted = sum(map(bool, moved))
    return GateResult(
        INTERACTION, interacted > 0, {"interacted": interacted, "episodes": len(episodes)}, {"interacted": 1}
    )


def _told(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {round(value, 4) if isinstance(value, float) else value}" for name, value in values.items()
    )
