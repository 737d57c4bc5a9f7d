"""Events of an episode that are read from its distances and grips: pure numpy, no physics.

In: distances in centimetres and grip codes, one per sample (index 0 is the settled state after reset). Out: how a pinch
that did not succeed ended, how fast the boat was carried, which ring of the reach envelope it began in, whether it was
touched at all. Definitions, boundaries and sources are listed in docs/metrics.md.

Shapes: T samples.
"""

from __future__ import annotations

import numpy as np

PINCH = 3
NOMINAL_TICK_S = 1.0 / 30.0  # documented speeds use it whatever a protocol's tick lasts
HOLDING_SAMPLES, STALLED_CM, CARRY_TICKS = 3, 0.5, 30
PINCH_FAILS = ("timeout_holding", "stalled_carry", "wrong_way")
# From each edge up to, not including, the next.
REACH_EDGES_CM = (6, 8, 9, 10, 11, 13)
REACH_BINS = (*(f"{low}-{high}" for low, high in zip(REACH_EDGES_CM, REACH_EDGES_CM[1:], strict=False)), "outside")
MOVED_ALONE_CM = 1e-6


def pinch_ticks(grip_T: np.ndarray) -> np.ndarray:
    """Indices of the samples that end a tick with both jaws on the boat; the settled state ends none."""
    return 1 + np.flatnonzero(grip_T[1:] == PINCH)


def pinch_fail(distance_cm_T: np.ndarray, grip_T: np.ndarray, *, success: bool) -> str | None:
    """How an episode that pinched the boat failed to place it, or None if it did not pinch or did succeed.

    Returns:
        ``timeout_holding``: the last pinch is among the last three samples; else ``stalled_carry``: between first and
        last pinch the boat came more than 0.5 cm closer; else ``wrong_way``.
    """
    ticks = pinch_ticks(grip_T)
    if success or not len(ticks):
        return None
    first, last = ticks[0], ticks[-1]
    if last >= len(grip_T) - HOLDING_SAMPLES:
        return "timeout_holding"
    return "stalled_carry" if distance_cm_T[first] - distance_cm_T[last] > STALLED_CM else "wrong_way"


def carry_speed_cm_s(distance_cm_T: np.ndarray, grip_T: np.ndarray, *, tick_s: float) -> float | None:
    """Distance closed between first and last pinch, over the time between them; signed.

    None with fewer than 30 pinch ticks (which need not be contiguous).
    """
    ticks = pinch_ticks(grip_T)
    if len(ticks) < CARRY_TICKS:
        return None
    first, last = ticks[0], ticks[-1]
    return float(distance_cm_T[first] - distance_cm_T[last]) / (int(last - first) * tick_s)


def reach_bin(initial_cm: float) -> str:
    """The ring of the reach envelope that an episode begins in: ``6-8``, ``8-9``, ``9-10``, ``10-11``, ``11-13`` cm.

    The lower edge belongs to a ring, the upper one to the next; what lies in none is ``outside``.
    """
    ring = int(np.searchsorted(REACH_EDGES_CM, initial_cm, side="right")) - 1
    return REACH_BINS[ring] if 0 <= ring < len(REACH_BINS) - 1 else "outside"


def interacted(distance_cm_T: np.ndarray) -> bool:
    """The boat's distance is not what an untouched boat's would be.

    The documented rule, ``min < initial - 1e-6 or final != initial`` (cm), needs untouched boats to be frozen to the
    last bit. In this scene's soft contacts one creeps, by about 1e-7 cm in an episode, so the second clause has the
    tolerance of the first.
    """
    initial, final = distance_cm_T[0], distance_cm_T[-1]
    return bool(distance_cm_T.min() < initial - MOVED_ALONE_CM or abs(final - initial) > MOVED_ALONE_CM)
