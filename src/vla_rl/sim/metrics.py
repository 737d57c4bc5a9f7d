"""From the trace of an episode to its metrics: pure numpy, no physics.

In: one sample per control tick (index 0 is the settled state after reset). Out: `EpisodeMetrics`, frozen, flat,
JSON-able. Formulas, units, boundaries and sources are listed in docs/metrics.md.

Two success tests are read from one trace. *Documented*: one tick with the boat over the disk, low, upright and every
degree of freedom slow; it allows a boat that is still held. *Strict*: the boat low, upright and slow over the disk,
touched by nothing of the gripper, for 15 ticks in a row. What depends on where a trace ends has two names: a plain one
for the whole trace, and one that starts with ``documented_`` for the trace cut at the first documented tick (what an
episode that ends at the documented test would have reported).

Left out: the trace itself, which would make an episode's row a hundred times longer (`trace_columns` packs it where it
is wanted), what pictures show (`vla_rl.sim.stillness`) and prices (`vla_rl.rl.reward`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.sim import funnel
from vla_rl.sim.funnel import NOMINAL_TICK_S, PINCH

DISK_RADIUS_M = 0.040
PLACED_Z_M = (0.004, 0.030)
MIN_UPRIGHT = 0.9
MAX_SPEED = 0.5  # of the documented test, which mixes m/s and rad/s
STILL_M_S, STILL_RAD_S = 0.05, 0.5  # of the strict one
STRICT_TICKS = 15
KNOCKAWAY_CM = -1.0
SETBACK_CM = 1.0
ENGAGED_CM, MOVED_CM = 1.0, 0.5
LIFTED_Z_M = 0.04
# Distances are multiples of 2^-40 cm (about 1e-12 cm), so that their sums are exact and need no order.
GRID_PER_CM = 2.0**40
# A boat that lies on its side, has left the work area or fell off the table cannot be placed any more.
HOPELESS_UPRIGHT, HOPELESS_DISTANCE_M, HOPELESS_Z_M, HOPELESS_TICKS = 0.5, 0.25, -0.02, 15


@dataclass(frozen=True)
class TickSample:
    """The world at the end of one tick.

    Attributes:
        distance_m: horizontal distance from the boat's origin (keel centre) to the disk centre.
        z_m: height of the boat's origin.
        upright: world z of the boat's z axis, -1 .. 1.
        boat_speed_m_s, boat_spin_rad_s: largest |velocity| of the boat along an axis, and around one.
        max_speed: largest |velocity| over all degrees of freedom, arm included (m/s and rad/s mixed, as documented).
        grip: 0 none, 1 fixed side, 2 moving jaw, 3 both touch the boat; None where contacts were not recorded.
    """

    distance_m: float
    z_m: float
    upright: float
    boat_speed_m_s: float
    boat_spin_rad_s: float
    max_speed: float
    grip: int | None

    def over_disk(self) -> bool:
        """Within the disk, 4 to 30 mm high, and upright."""
        return (
            self.distance_m < DISK_RADIUS_M and PLACED_Z_M[0] < self.z_m < PLACED_Z_M[1] and self.upright > MIN_UPRIGHT
        )

    def documented(self) -> bool:
        """The documented success test; a held boat may pass."""
        return self.over_disk() and self.max_speed < MAX_SPEED

    def placed(self) -> bool:
        """One tick of the strict test: over the disk, still, and untouched by the gripper."""
        still = self.boat_speed_m_s < STILL_M_S and self.boat_spin_rad_s < STILL_RAD_S
        return self.grip == 0 and self.over_disk() and still

    def hopeless(self) -> bool:
        """One tick of a boat that cannot be placed any more."""
        return self.upright < HOPELESS_UPRIGHT or self.distance_m > HOPELESS_DISTANCE_M or self.z_m < HOPELESS_Z_M


def first_tick(flags: Sequence[bool], dwell: int = 1) -> int | None:
    """0-based tick at which `flags` (reset state excluded) has been true `dwell` ticks in a row, or None."""
    run = 0
    for tick, flag in enumerate(flags):
        run = run + 1 if flag else 0
        if run == dwell:
            return tick
    return None


@dataclass(frozen=True)
class EpisodeMetrics:
    """What an episode did. Centimetres, ticks and booleans; None where something never happened or is not known.

    Attributes:
        initial_cm, min_cm, final_cm: boat-to-disk distance at reset, at its smallest (reset included) and at the end.
        reach_bin: ring of the reach envelope that `initial_cm` lies in, see `funnel.reach_bin`.
        progress_cm, progress_final_cm: initial minus smallest (never negative), initial minus final.
        success, success_test: the outcome, and the test it is read from: the one that `terminate_on` names (`never`:
            the documented one).
        success_documented, success_tick: documented test, and its first 0-based tick.
        success_strict, strict_tick: strict test, and the tick that completed it.
        ticks: ticks executed.
        final_upright, final_z_mm, tipped: boat at the end; tipped when the world z of its axis is below 0.9.
        reset_strikes: contact points times steps between arm and boat during reset (0 unless the scene is broken).
        max_setback_cm, setback: worst distance over the trace minus the initial one; at least 1 cm.
        knockaway: the boat ended at least 1 cm farther away than it began.
        engaged, moved: `progress_cm` above 1 cm, above 0.5 cm.
        interacted: the distance is not that of an untouched boat, see `funnel.interacted`.
        grasped_progress_cm: distance closed on ticks at whose end both jaws touch the boat (signed); "earned".
        ungrasped_displacement_cm: sum of |change of distance| over all other ticks; "shoved".
        touched, pinched, lifted: the gripper touched it; both jaws did; pinched above 4 cm.
        pinch_ticks, pinch_fail: ticks that end with a pinch; how a pinch without success ended (`funnel.pinch_fail`).
        carry_speed_cm_s, carry_speed_nominal_cm_s: see `funnel.carry_speed_cm_s`, with the protocol's tick and with
            1/30 s as documented.
        hopeless: on its side, farther than 25 cm or below the table for 15 ticks in a row.
        documented_*: the same quantities on the trace cut at `success_tick`.

    Whatever needs contacts is None when the trace holds none, except that `success_strict` is then False.
    """

    initial_cm: float
    min_cm: float
    final_cm: float
    reach_bin: str
    progress_cm: float
    progress_final_cm: float
    success: bool
    success_test: str
    success_documented: bool
    success_tick: int | None
    success_strict: bool
    strict_tick: int | None
    ticks: int
    final_upright: float
    final_z_mm: float
    tipped: bool
    reset_strikes: int
    max_setback_cm: float
    setback: bool
    knockaway: bool
    engaged: bool
    moved: bool
    interacted: bool
    grasped_progress_cm: float | None
    ungrasped_displacement_cm: float | None
    touched: bool | None
    pinched: bool | None
    lifted: bool | None
    pinch_ticks: int | None
    pinch_fail: str | None
    carry_speed_cm_s: float | None
    carry_speed_nominal_cm_s: float | None
    hopeless: bool
    documented_min_cm: float
    documented_final_cm: float
    documented_progress_cm: float
    documented_progress_final_cm: float
    documented_ticks: int
    documented_final_upright: float
    documented_final_z_mm: float
    documented_tipped: bool
    documented_max_setback_cm: float
    documented_setback: bool
    documented_knockaway: bool
    documented_engaged: bool
    documented_moved: bool
    documented_interacted: bool
    documented_grasped_progress_cm: float | None
    documented_ungrasped_displacement_cm: float | None
    documented_touched: bool | None
    documented_pinched: bool | None
    documented_lifted: bool | None
    documented_pinch_ticks: int | None
    documented_pinch_fail: str | None
    documented_carry_speed_cm_s: float | None
    documented_carry_speed_nominal_cm_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """Flat, JSON-able."""
        return dataclasses.asdict(self)


def distances_cm(trace: Sequence[TickSample]) -> np.ndarray:
    """Boat-to-disk distances float64 [samples], on a grid of 2^-40 cm."""
    return np.round(np.array([sample.distance_m for sample in trace]) * (100.0 * GRID_PER_CM)) / GRID_PER_CM


def grips(trace: Sequence[TickSample]) -> np.ndarray | None:
    """Grip codes int [samples]; None if a sample has none."""
    codes = [sample.grip for sample in trace]
    return None if None in codes else np.array(codes, dtype=int)


def trace_columns(trace: Sequence[TickSample]) -> dict[str, Any]:
    """A trace as it is stored: `distance_cm` rounded to 0.001 and `grip`, one digit a sample (None: not recorded)."""
    grip_T = grips(trace)
    return {
        "distance_cm": [round(float(value), 3) for value in distances_cm(trace)],
        "grip": None if grip_T is None else "".join(map(str, grip_T)),
    }


def distance_terms(distance_cm_T: np.ndarray, last: TickSample) -> dict[str, Any]:
    """The quantities of a trace that need distances only, by their `EpisodeMetrics` names (definitions there)."""
    initial, smallest, final = (float(v) for v in (distance_cm_T[0], distance_cm_T.min(), distance_cm_T[-1]))
    setback = float(distance_cm_T.max()) - initial
    return {
        "min_cm": smallest,
        "final_cm": final,
        "progress_cm": initial - smallest,
        "progress_final_cm": initial - final,
        "ticks": len(distance_cm_T) - 1,
        "final_upright": float(last.upright),
        "final_z_mm": 1000.0 * float(last.z_m),
        "tipped": bool(last.upright < MIN_UPRIGHT),
        "max_setback_cm": setback,
        "setback": setback >= SETBACK_CM,
        "knockaway": initial - final <= KNOCKAWAY_CM,
        "engaged": initial - smallest > ENGAGED_CM,
        "moved": initial - smallest > MOVED_CM,
        "interacted": funnel.interacted(distance_cm_T),
    }


GRIP_TERMS = (
    "grasped_progress_cm",
    "ungrasped_displacement_cm",
    "touched",
    "pinched",
    "lifted",
    "pinch_ticks",
    "pinch_fail",
    "carry_speed_cm_s",
    "carry_speed_nominal_cm_s",
)


def grip_terms(
    distance_cm_T: np.ndarray, grip_T: np.ndarray | None, z_m_T: np.ndarray, *, success: bool, tick_s: float
) -> dict[str, Any]:
    """The quantities of a trace that need contacts, by their `EpisodeMetrics` names; all None without contacts."""
    if grip_T is None:
        return dict.fromkeys(GRIP_TERMS)
    closed_cm = -np.diff(distance_cm_T)
    pinched = grip_T[1:] == PINCH
    values = (
        float(closed_cm[pinched].sum()),
        float(np.abs(closed_cm[~pinched]).sum()),
        bool((grip_T[1:] > 0).any()),
        bool(pinched.any()),
        bool((pinched & (z_m_T[1:] > LIFTED_Z_M)).any()),
        int(pinched.sum()),
        funnel.pinch_fail(distance_cm_T, grip_T, success=success),
        funnel.carry_speed_cm_s(distance_cm_T, grip_T, tick_s=tick_s),
        funnel.carry_speed_cm_s(distance_cm_T, grip_T, tick_s=NOMINAL_TICK_S),
    )
    return dict(zip(GRIP_TERMS, values, strict=True))


def trace_terms(trace: Sequence[TickSample], *, success: bool, tick_s: float) -> dict[str, Any]:
    """Everything that depends on where a trace ends, by its `EpisodeMetrics` name."""
    distance_cm_T, z_m_T = distances_cm(trace), np.array([sample.z_m for sample in trace])
    return {
        **distance_terms(distance_cm_T, trace[-1]),
        **grip_terms(distance_cm_T, grips(trace), z_m_T, success=success, tick_s=tick_s),
    }


def success_test(terminate_on: str) -> str:
    """The test behind `success`: the one that ends the episode, and the documented one where none does."""
    return "success_strict" if terminate_on == "success_strict" else "success_documented"


def episode_metrics(
    trace: Sequence[TickSample], *, reset_strikes: int, terminate_on: str, tick_s: float = NOMINAL_TICK_S
) -> EpisodeMetrics:
    """All metrics of one episode.

    Args:
        trace: samples, index 0 after reset; at least one.
        reset_strikes: counted while resetting.
        terminate_on: ``success_documented``, ``success_strict`` or ``never``; decides `success`.
        tick_s: duration of a tick.

    Raises:
        ValueError: an empty trace.
    """
    if not trace:
        raise ValueError("an episode without a sample has no metrics")
    after_reset = trace[1:]
    success_tick = first_tick([sample.documented() for sample in after_reset])
    strict_tick = first_tick([sample.placed() for sample in after_reset], STRICT_TICKS)
    test = success_test(terminate_on)
    success = (strict_tick if test == "success_strict" else success_tick) is not None
    cut = trace if success_tick is None else trace[: success_tick + 2]
    documented = trace_terms(cut, success=success_tick is not None, tick_s=tick_s)
    initial_cm = float(distances_cm(trace[:1])[0])
    return EpisodeMetrics(
        initial_cm=initial_cm,
        reach_bin=funnel.reach_bin(initial_cm),
        success=success,
        success_test=test,
        success_documented=success_tick is not None,
        success_tick=success_tick,
        success_strict=strict_tick is not None,
        strict_tick=strict_tick,
        reset_strikes=reset_strikes,
        hopeless=first_tick([sample.hopeless() for sample in after_reset], HOPELESS_TICKS) is not None,
        **trace_terms(trace, success=success, tick_s=tick_s),
        **{f"documented_{name}": value for name, value in documented.items()},
    )
