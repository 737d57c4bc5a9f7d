"""Tripwires: what a wave, an update or an evaluation must not look like, and for how long.

In: the `tripwires` section, the state so far, the facts of one wave, update or evaluation. Out: the new state and what
fired. Pure functions: nothing is read, written or stopped here (`guards` does that), and nothing depends on a clock.

A wire that is off is not judged and has no state. A reading that does not exist (no update, no interval) leaves a
streak as it is; a reading that is no number crosses its line. `divergence` and `heldout` read means of the rewards
that are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from vla_rl.config.schema import TripwiresConfig
from vla_rl.errors import ConfigError
from vla_rl.stats.bootstrap import paired_bootstrap

OFF, RECORD, ARMED = "off", "record", "armed"


@dataclass(frozen=True)
class Firing:
    """A wire that fired.

    Attributes:
        wire: its name, e.g. ``"knockaway"``.
        mode: ``"record"`` or ``"armed"``; the latter stops the run.
        value: the last reading; None where there is no number.
        threshold: the line that it crossed.
        streak: consecutive readings beyond the line, this one included.
    """

    wire: str
    mode: str
    value: float | None
    threshold: float | None
    streak: int

    @property
    def armed(self) -> bool:
        return self.mode == ARMED

    def row(self) -> dict[str, Any]:
        """As an entry of `tripwires` in a row of `train.jsonl` or `eval.jsonl`."""
        return asdict(self)


@dataclass(frozen=True)
class WireState:
    """What wires remember from wave to wave; part of every checkpoint.

    Attributes:
        streaks: consecutive readings beyond the line, by wire.
        knockaway_baseline: share of knock-aways in the run's first wave, once captured.
        waves: (mean reward in cm, share of successes) of the last waves, oldest first, for `divergence`.
    """

    streaks: Mapping[str, int] = field(default_factory=dict)
    knockaway_baseline: float | None = None
    waves: tuple[tuple[float, float], ...] = ()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> WireState:
        """The inverse of `dataclasses.asdict`, also after a detour through JSON."""
        waves = tuple((float(reward), float(success)) for reward, success in record["waves"])
        return cls(dict(record["streaks"]), record["knockaway_baseline"], waves)


@dataclass(frozen=True)
class WaveFacts:
    """What can be known of a wave before its update; names and meanings as in `train.jsonl`."""

    strikes: int
    median_group_std_cm: float | None
    knockaway_frac: float | None
    setback_frac: float | None
    reward_mean: float | None
    success_rate: float


@dataclass(frozen=True)
class UpdateFacts:
    """What an update was like; None where there was nothing to measure."""

    finite: bool
    anchor_kl: float | None
    entropy: float | None
    clip_fraction: float | None


@dataclass(frozen=True)
class _Reading:
    """A wire's reading: whether it is beyond the line (None: there is none), and what to report."""

    wire: str
    crossed: bool | None
    value: float | None
    threshold: float | None
    needed: int = 1


def check_wires(wires: TripwiresConfig, *, kl_rows: int, ratio_moves: bool) -> None:
    """Refuse wires that could never fire.

    Args:
        kl_rows: rows on which the distance to step 0 is measured.
        ratio_moves: whether a token's ratio can be another than 1; where it cannot, `clip` may record its zeros, as
            the documented runs do, and is refused only as a stop.

    Raises:
        ConfigError: naming the key that is missing.
    """
    mute = {
        "kl_stop": ("loss.kl_rows", kl_rows == 0),
        "entropy": (
            "tripwires.entropy_floor_nats, tripwires.entropy_ceiling_nats",
            not wires.entropy_floor_nats and wires.entropy_ceiling_nats is None,  # no entropy is below 0
        ),
        "pace": ("tripwires.pace_episodes_per_min", wires.pace_episodes_per_min is None),
    }
    normal = wires.knockaway_baseline
    high = {
        "knockaway": (
            "tripwires.knockaway_factor, tripwires.knockaway_baseline",
            normal is not None and wires.knockaway_factor * normal >= 1,
        ),
        "setback": ("tripwires.setback_share", wires.setback_share >= 1),
        "clip": ("tripwires.clip_share", wires.clip_share >= 1),
    }
    for wire, (keys, beyond) in high.items():
        if getattr(wires, wire) != OFF and beyond:
            raise ConfigError(
                f"the wire {wire} cannot fire: no share is above a line of 1 or more",
                where=keys,
                remedy=f"lower the line, or tripwires.{wire}=off",
            )
    for wire, (keys, missing) in mute.items():
        if getattr(wires, wire) != OFF and missing:
            raise ConfigError(
                f"the wire {wire} has no line to cross", where=keys, remedy=f"give one, or tripwires.{wire}=off"
            )
    if wires.clip == ARMED and not ratio_moves:
        raise ConfigError(
            "the wire clip cannot fire: in a single pass against rescored log-probabilities every ratio is 1",
            where="tripwires.clip, loss.old_logp, loss.epochs",
            remedy="use loss.old_logp=recorded or loss.epochs=2, or tripwires.clip=off",
        )


def silent_line(wires: TripwiresConfig, state: WireState) -> float | None:
    """The line of `knockaway` if its captured baseline puts it at 1 or more, where it cannot fire; else None."""
    if wires.knockaway == OFF or wires.knockaway_baseline is not None or state.knockaway_baseline is None:
        return None
    line = wires.knockaway_factor * state.knockaway_baseline
    return line if line >= 1 else None


def judge_wave(wires: TripwiresConfig, state: WireState, facts: WaveFacts) -> tuple[WireState, list[Firing]]:
    """Judge a complete wave, before its update: strikes, collapse, knockaway, setback, divergence."""
    knockaway, baseline = facts.knockaway_frac, state.knockaway_baseline
    normal = wires.knockaway_baseline if wires.knockaway_baseline is not None else baseline
    if wires.knockaway != OFF and normal is None:
        baseline = knockaway
    line = None if normal is None else wires.knockaway_factor * normal
    spread, least = facts.median_group_std_cm, wires.collapse_std_cm
    state = replace(state, knockaway_baseline=baseline)
    readings = [
        _Reading("strikes", facts.strikes > 0, facts.strikes, 0),
        _Reading("collapse", spread is None or not spread >= least, spread, least, wires.collapse_waves),
        _Reading("knockaway", _above(knockaway, line), knockaway, line, wires.knockaway_waves),
        _above_line("setback", facts.setback_frac, wires.setback_share, wires.setback_waves),
    ]
    if wires.divergence != OFF and facts.reward_mean is not None:
        waves = (*state.waves, (facts.reward_mean, facts.success_rate))[-wires.divergence_waves :]
        state = replace(state, waves=waves)
        readings.append(_divergence(wires, waves))
    return _judge(wires, state, readings)


def judge_update(wires: TripwiresConfig, state: WireState, facts: UpdateFacts) -> tuple[WireState, list[Firing]]:
    """Judge an update: non_finite, kl_stop, entropy, clip."""
    floor, ceiling, entropy = wires.entropy_floor_nats, wires.entropy_ceiling_nats, facts.entropy
    too_low = entropy is not None and floor is not None and not entropy >= floor
    too_high = entropy is not None and ceiling is not None and not entropy <= ceiling
    return _judge(
        wires,
        state,
        [
            _Reading("non_finite", not facts.finite, None, None),
            _above_line("kl_stop", facts.anchor_kl, wires.kl_stop_nats),
            _Reading("entropy", too_low or too_high, entropy, floor if too_low else ceiling),
            _above_line("clip", facts.clip_fraction, wires.clip_share),
        ],
    )


def judge_heldout(wires: TripwiresConfig, before: Mapping[int, float], after: Mapping[int, float]) -> list[Firing]:
    """Judge a held-out evaluation against the run's first: heldout. It has no streak.

    The upper end of the 95 % percentile bootstrap of the mean paired change is compared with the line. Seeds that
    cannot be scored on both sides are left out.

    Args:
        before, after: documented reward in cm by seed.
    """
    seeds = before.keys() & after.keys()
    if wires.heldout == OFF or not seeds:
        return []
    high = paired_bootstrap({s: before[s] for s in seeds}, {s: after[s] for s in seeds}).high
    crossed = high < wires.heldout_line_cm
    return [Firing("heldout", wires.heldout, high, wires.heldout_line_cm, 1)] if crossed else []


def _divergence(wires: TripwiresConfig, waves: Sequence[tuple[float, float]]) -> _Reading:
    """The mean of the later half of the window minus that of the earlier; of an odd number the middle one is left out.

    The value is the fall of the success share, as that is what a rising reward should have prevented.
    """
    half = wires.divergence_waves // 2
    if len(waves) < wires.divergence_waves:
        return _Reading("divergence", None, None, None)
    rise, fall = (_later_minus_earlier([wave[i] for wave in waves], half) for i in (0, 1))
    crossed = rise > 0 and rise >= wires.divergence_reward_cm and fall < 0 and -fall >= wires.divergence_success
    return _Reading("divergence", crossed, fall, -wires.divergence_success)


def _later_minus_earlier(values: Sequence[float], half: int) -> float:
    return fmean(values[-half:]) - fmean(values[:half])


def _above(value: float | None, line: float | None) -> bool | None:
    """Whether a reading is above a line; a reading that is no number is."""
    return None if value is None or line is None else not value <= line


def _above_line(wire: str, value: float | None, line: float, needed: int = 1) -> _Reading:
    return _Reading(wire, _above(value, line), value, line, needed)


def _judge(wires: TripwiresConfig, state: WireState, readings: Sequence[_Reading]) -> tuple[WireState, list[Firing]]:
    streaks, firings = dict(state.streaks), []
    for reading in readings:
        mode: str = getattr(wires, reading.wire)
        if mode == OFF or reading.crossed is None:
            continue
        streak = streaks[reading.wire] = streaks.get(reading.wire, 0) + 1 if reading.crossed else 0
        if reading.crossed and streak >= reading.needed:
            value = reading.value if reading.value is not None and math.isfinite(reading.value) else None
            firings.append(Firing(reading.wire, mode, value, reading.threshold, streak))
    return replace(state, streaks=streaks), firings


def projected_pace(*, predicts: int, wall_s: float, episodes: int, replans: int) -> float:
    """Episodes a minute that a wave is going to make, from the predicts it has answered so far.

    Predicts of episodes under way count, so that many slots do not look slow before their first episodes end. As those
    that end first are the short ones, the projection is rather too high: a wave that is found too slow is too slow.

    Args:
        predicts: answered since the wave began, `wall_s` ago.
        episodes: that have ended, with `replans` predicts altogether.
    """
    return 60.0 * (predicts / wall_s) / (replans / episodes) if wall_s > 0 else math.inf
