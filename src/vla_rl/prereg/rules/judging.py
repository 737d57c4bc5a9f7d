"""How a test or an interval becomes a status, the same way in every rule.

In: what was shown, and the rule's choice of what to make of nothing shown. Out: a status.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.outcome import Status
from vla_rl.prereg.rules.base import Context, Direction

Otherwise = Literal["inconclusive", "fail"]
Requires = Literal["beyond", "not_against"]
FEWEST_RESAMPLES = 10_000  # with fewer, the ends of an interval change with the seed


def settle(shown: bool, opposite: bool, otherwise: Otherwise) -> Status:
    """PASS if it is shown, FAIL if its opposite is, else what the rule says."""
    if shown:
        return "PASS"
    return "FAIL" if opposite or otherwise == "fail" else "INCONCLUSIVE"


def settle_interval(
    low: Any, high: Any, line: Any, direction: Direction, requires: Requires, otherwise: Otherwise
) -> Status:
    """An interval against a line: whether it lies beyond it, or at least not wholly on the wrong side."""
    above, below = low > line, high < line
    beyond, against = (above, below) if direction == "increase" else (below, above)
    if requires == "not_against":
        return "FAIL" if against else "PASS"
    return settle(beyond, against, otherwise)


def check_resampling(level: float, resamples: int, seed: int) -> None:
    """Refuse parameters of a bootstrap that no read should rest on.

    Raises:
        ConfigError: naming the parameter.
    """
    if not 0 < level < 1:
        raise ConfigError(f"{level} is no confidence level", where="level")
    if resamples < FEWEST_RESAMPLES:
        raise ConfigError(f"{resamples} resamples are too few", where="resamples", remedy=f"{FEWEST_RESAMPLES} or more")
    if seed < 0:
        raise ConfigError(f"{seed} is no seed", where="seed")


def resampling(seed: int, resamples: int) -> dict[str, Any]:
    """What it takes to draw the same resamples again; a generator's distributions may change with numpy's version."""
    return {"seed": seed, "resamples": resamples, "numpy": metadata.version("numpy")}


def faults_of_shares(**named: float | None) -> Iterator[str]:
    """Why parameters that are shares, or differences of shares, are none; None is left out."""
    for name, value in named.items():
        if value is not None and not 0 <= value <= 1:
            yield f"{name} {value:g} is no share: it lies between 0 and 1"


def faults_of_rows(context: Context, measurement: str, last: int | None) -> Iterator[str]:
    """Why the last rows of a measurement cannot be had."""
    planned = context.planned[measurement]
    if last is None:
        return
    if planned.kind == "evaluation":
        yield f"{measurement} is an evaluation and has no rows of which to take the last {last}"
    elif last < 1 or (planned.steps is not None and last > planned.steps):
        yield f"the last {last} rows are wanted of {planned.steps}: it can never be judged"
