"""Holm's step-down adjustment of several p-values (Holm 1979, Scand J Stat 6:65-70).

In: p-values by name. Out: adjusted ones, to be compared with the size of the whole family.
"""

from __future__ import annotations

from collections.abc import Mapping

from vla_rl.errors import UsageError


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values: the i-th smallest of m times ``m - i + 1``, never below an earlier one, at most 1.

    Raises:
        UsageError: a p-value outside [0, 1].
    """
    if wrong := [name for name, p in p_values.items() if not 0 <= p <= 1]:
        raise UsageError(f"{wrong[0]} has no p-value: {p_values[wrong[0]]}", where="Holm's adjustment")
    adjusted, reached = {}, 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: (p_values[name], name))):
        reached = max(reached, min(1.0, (len(p_values) - i) * p_values[name]))
        adjusted[name] = reached
    return {name: adjusted[name] for name in p_values}
