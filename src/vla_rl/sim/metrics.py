"""From the trace of an episode to its metrics: pure numpy, no physics.

In: one sample per control tick (index 0 is the settled state after reset). Out: `EpisodeMetrics`, frozen, flat,
JSON-able.

Two success tests are read from one trace. *Documented*: one tick with the boat over the disk, low, upright and every
degree of freedom slow; it allows a boat that is still held. *Strict*: the boat low, upright and slow over the disk,
touched by nothing of the gripper, for 15 ticks in a row. Distances are those of the whole trace under plain names, and
of the trace cut at the first documented tick under names that start with ``documented_`` (what an episode that ends at
the documented test would have reported).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DISK_RADIUS_M = 0.040
PLACED_Z_M = (0.004, 0.030)
MIN_UPRIGHT = 0.9
MAX_SPEED = 0.5
STRICT_TICKS = 15
KNOCKAWAY_CM = -1.0
SETBACK_CM = 1.0
LIFTED_Z_M = 0.04
PINCH = 3
# A boat that lies on its side, has left the work area or fell off the table cannot be placed any more.
HOPELESS_UPRIGHT, HOPELESS_DISTANCE_M, HOPELESS_Z_M, HOPELESS_TICKS = 0.5, 0.25, -0.02, 15


@dataclass(frozen=True)
class TickSample:
    """The world at the end of one tick.

    Attributes:
        distance_m: horizontal distance from the boat's origin (keel centre) to the disk centre.
        z_m: height of the boat's origin.
        upright: world z of the boat's z axis, -1 .. 1.
        boat_speed: largest of the boat's six |velocities| (m/s and rad/s mixed, as documented).
        max_speed: largest |velocity| over all degrees of freedom, arm included.
        grip: 0 none, 1 fixed side, 2 moving jaw, 3 both touch the boat.
    """

    distance_m: float
    z_m: float
    upright: float
    boat_speed: float
    max_speed: float
    grip: int

    def over_disk(self) -> bool:
        """Within the disk, 4 to 30 mm high, and upright."""
        return (
            self.distance_m < DISK_RADIUS_M and PLACED_Z_M[0] < self.z_m < PLACED_Z_M[1] and self.upright > MIN_UPRIGHT
        )

    def documented(self) -> bool:
        """The documented success test; a held boat may pass."""
        return self.over_disk() and self.max_speed < MAX_SPEED

    def placed(self) -> bool:
        """One tick of the strict test: over the disk, slow, and untouched by the gripper."""
        return self.grip == 0 and self.over_disk() and self.boat_speed < MAX_SPEED

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
    """What an episode did. Centimetres, ticks and booleans; None where something never happened.

    Attributes:
        initial_cm, min_cm, final_cm: boat-to-disk distance at reset, at its smallest (reset included) and at the end.
        progress_cm, progress_final_cm: initial minus smallest (never negative), initial minus final.
        success: the test that `terminate_on` names (`never`: the documented one).
        success_documented, success_tick: documented test, and its first 0-based tick.
        success_strict, strict_tick: strict test, and the tick that completed it.
        ticks: ticks executed.
        final_upright, final_z_mm, tipped: boat at the end; tipped when the world z of its axis is below 0.9.
        reset_strikes: contact points times steps between arm and boat during reset (0 unless the scene is broken).
        max_setback_cm, setback: worst distance over the trace minus the initial one; at least 1 cm.
        knockaway: the boat ended at least 1 cm farther away than it began.
        grasped_progress_cm: distance closed on ticks at whose end both jaws touch the boat (signed).
        ungrasped_displacement_cm: sum of |change of distance| over all other ticks.
        touched, pinched, lifted: the gripper touched it; both jaws did; pinched above 4 cm.
        hopeless: on its side, farther than 25 cm or below the table for 15 ticks in a row.
        documented_*: the same quantities on the trace cut at `success_tick`.
    """

    initial_cm: float
    min_cm: float
    final_cm: float
    progress_cm: float
    progress_final_cm: float
    success: bool
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
    grasped_progress_cm: float
    ungrasped_displacement_cm: float
    touched: bool
    pinched: bool
    lifted: bool
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
    documented_grasped_progress_cm: float
    documented_ungrasped_displacement_cm: float

    def as_dict(self) -> dict[str, Any]:
        """Flat, JSON-able."""
        return dataclasses.asdict(self)


def distance_terms(trace: Sequence[TickSample]) -> dict[str, Any]:
    """The quantities that depend on where a trace ends, by their `EpisodeMetrics` names (definitions there)."""
    distance_cm_T = 100.0 * np.array([sample.distance_m for sample in trace])
    closed_cm_T = -np.diff(distance_cm_T)
    pinched_T = np.array([sample.grip == PINCH for sample in trace[1:]], dtype=bool)
    initial, final = float(distance_cm_T[0]), float(distance_cm_T[-1])
    setback = float(distance_cm_T.max()) - initial
    return {
        "min_cm": float(distance_cm_T.min()),
        "final_cm": final,
        "progress_cm": initial - float(distance_cm_T.min()),
        "progress_final_cm": initial - final,
        "ticks": len(trace) - 1,
        "final_upright": float(trace[-1].upright),
        "final_z_mm": 1000.0 * float(trace[-1].z_m),
        "tipped": bool(trace[-1].upright < MIN_UPRIGHT),
        "max_setback_cm": setback,
        "setback": setback >= SETBACK_CM,
        "knockaway": initial - final <= KNOCKAWAY_CM,
        "grasped_progress_cm": float(closed_cm_T[pinched_T].sum()),
        "ungrasped_displacement_cm": float(np.abs(closed_cm_T[~pinched_T]).sum()),
    }


def episode_metrics(trace: Sequence[TickSample], *, reset_strikes: int, terminate_on: str) -> EpisodeMetrics:
    """All metrics of one episode.

    Args:
        trace: samples, index 0 after reset; at least one.
        reset_strikes: counted while resetting.
        terminate_on: ``success_documented``, ``success_strict`` or ``never``; decides `success`.
    """
    after_reset = trace[1:]
    success_tick = first_tick([sample.documented() for sample in after_reset])
    strict_tick = first_tick([sample.placed() for sample in after_reset], STRICT_TICKS)
    cut = trace if success_tick is None else trace[: success_tick + 2]
    documented = {f"documented_{name}": value for name, value in distance_terms(cut).items()}
    return EpisodeMetrics(
        initial_cm=100.0 * float(trace[0].distance_m),
        success=(strict_tick if terminate_on == "success_strict" else success_tick) is not None,
        success_documented=success_tick is not None,
        success_tick=success_tick,
        success_strict=strict_tick is not None,
        strict_tick=strict_tick,
        reset_strikes=reset_strikes,
        touched=any(sample.grip > 0 for sample in after_reset),
        pinched=any(sample.grip == PINCH for sample in after_reset),
        lifted=any(sample.grip == PINCH and sample.z_m > LIFTED_Z_M for sample in after_reset),
        hopeless=first_tick([sample.hopeless() for sample in after_reset], HOPELESS_TICKS) is not None,
        **distance_terms(trace),
        **documented,
    )
