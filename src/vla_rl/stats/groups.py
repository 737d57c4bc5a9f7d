"""How many groups of draws will hold both outcomes.

In: a success rate and a group size. Out: expected shares and probabilities. All draws are taken to succeed with the
same rate. Seeds differ, and the share is concave in the rate, so the true share is at most the forecast (Jensen).
"""

from __future__ import annotations

from vla_rl.errors import UsageError


def mixed_share(rate: float, draws: int) -> float:
    """Probability ``1 - (1 - p)^G - p^G`` that G draws hold a success and a failure.

    Raises:
        UsageError: a rate that is none, or no draw.
    """
    if not 0 <= rate <= 1 or draws < 1:
        raise UsageError(f"{rate} is no success rate, or {draws} no group size", where="group forecast")
    return 1.0 - (1.0 - rate) ** draws - rate**draws


def mixed_share_range(low: float, high: float, draws: int) -> tuple[float, float]:
    """Least and largest `mixed_share` over an interval of rates; the share is largest at one half."""
    ends = (mixed_share(low, draws), mixed_share(high, draws))
    return min(ends), mixed_share(0.5, draws) if low <= 0.5 <= high else max(ends)


def barren_wave(rate: float, draws: int, groups: int) -> float:
    """Probability that no group of a wave holds both outcomes."""
    return (1.0 - mixed_share(rate, draws)) ** groups
