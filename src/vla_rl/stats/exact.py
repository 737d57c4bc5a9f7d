"""Numbers as they were written, so that a comparison at the very line goes the way a reader expects.

In: floats of a registration, counts. Out: fractions. 0.30 is three tenths here, although no float is: 20/20 - 14/20 is
at most 0.30, and the share 2/100 does not lie above 0.02.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from vla_rl.errors import UsageError


def written(number: float | Fraction) -> Fraction:
    """The decimal number that prints as `number` (an integer or a fraction stays what it is).

    Raises:
        UsageError: not finite.
    """
    if isinstance(number, Fraction):
        return number
    try:
        return Fraction(repr(float(number)))
    except (ValueError, OverflowError):
        raise UsageError(f"{number} is no finite number", where="statistics") from None


def order_statistics(level: float, resamples: int) -> tuple[int, int]:
    """Zero-based ranks of the two ends of a percentile interval among sorted resamples.

    The quantile q of B values is the ``ceil(q B)``-th smallest (numpy's ``inverted_cdf``), so both ends are values that
    occurred; q is taken as written, since in floats ``(1 - 0.95) / 2 * 10_000`` exceeds 250.

    Raises:
        UsageError: no level between 0 and 1, or no resamples.
    """
    if not 0 < level < 1 or resamples < 1:
        raise UsageError(f"{level} is no confidence level, or {resamples} no number of resamples", where="bootstrap")
    tail = (1 - written(level)) / 2
    return ceil(tail * resamples) - 1, ceil((1 - tail) * resamples) - 1
