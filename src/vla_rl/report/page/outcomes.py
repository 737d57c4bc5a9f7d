"""Charts of held-out episodes: the same scenes before and after, where success is within reach, what reward is made of.

In: episodes of evaluations that may be told. Out: charts with their numbers, and the comparison in words. Only
evaluations of the same scenes under the same conditions are paired; a number that an episode lacks is left out with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from vla_rl.errors import UsageError, VlaRlError
from vla_rl.evals.paired import compare
from vla_rl.evals.summary import reach_envelope
from vla_rl.report.evaluation import outcome
from vla_rl.report.page.model import Cell, Chart, Table
from vla_rl.report.page.plots import NARROW_PAIRS, Lines, Pair, Pairs, Series
from vla_rl.report.page.rundata import TERM
from vla_rl.report.page.steps import number
from vla_rl.report.tables import TEST_NAMES, change
from vla_rl.rl.reward import documented_reward
from vla_rl.seeds import format_seeds
from vla_rl.stats.intervals import clopper_pearson

Rows = Sequence[Mapping[str, Any]]
IN_ALL = "in all"
METRICS = {"reward": "reward, cm", "progress_final_cm": "progress at the end, cm"}


@dataclass(frozen=True)
class Side:
    """One evaluation.

    Attributes:
        label: e.g. ``before`` or ``60 updates``.
        episodes: one a scene.
        conditions: protocol, scene, test, temperature, as a summary names them.
    """

    label: str
    episodes: Rows
    conditions: Mapping[str, Any]

    @property
    def count(self) -> tuple[int, int]:
        """(successes, episodes)."""
        return sum(bool(e.get("success")) for e in self.episodes), len(self.episodes)


@dataclass(frozen=True)
class Compared:
    """Two evaluations of the same scenes: `read` as `evals.paired` has it."""

    before: Side
    after: Side
    read: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """Counts, change, interval and n in one sentence."""
        (k, n), (j, _) = self.before.count, self.after.count
        test = TEST_NAMES.get(str(self.read.get("success_test")), "")
        return (
            f"Success on {n} held-out scenes: {k} before, {j} after ({100 * k / n:.0f} % to {100 * j / n:.0f} %); "
            f"change {change(self.read['success'], scale=100, unit=' points')}{f' by the {test}' if test else ''}."
        )


def compared(before: Side, after: Side) -> Compared | str:
    """The paired comparison, or why there is none."""
    if not all("success_test" in side.conditions for side in (before, after)):
        return "an evaluation does not tell by which test it counts successes"
    try:
        read = compare(
            before.episodes, after.episodes, before_summary=before.conditions, after_summary=after.conditions
        )
    except UsageError as error:
        return error.what
    except (KeyError, TypeError, ValueError):
        return "the episodes lack what a comparison needs (seed, success, reward)"
    return Compared(before, after, read)


def pairs(name: str, told: Compared, title: str) -> list[Chart]:
    """Every scene before and after."""
    before, after = ({e["seed"]: e for e in side.episodes} for side in (told.before, told.after))
    for metric, y_label in METRICS.items():
        both = [s for s in sorted(before) if None not in (number(before[s].get(metric)), number(after[s].get(metric)))]
        if both:
            found = [
                Pair(s, float(before[s][metric]), float(after[s][metric]), _yes(before[s]), _yes(after[s]))
                for s in both
            ]
            table = Table(name, ["seed", f"{y_label}, before", "after", "outcome before", "after", "change"],
                          [_line(pair, before[pair.seed], after[pair.seed]) for pair in found])  # fmt: skip
            plot = Pairs(title, y_label, found)
            note = (
                f"{len(found)} scenes, each a line from before (small dot) to after. Blue rose, orange fell"
                f"{'; a square is a success' if len(found) <= NARROW_PAIRS else ''}."
            )
            if (drawn := len(plot.drawn())) < len(found):
                note += f" {drawn} of them are drawn; the table has all."
            return [Chart(name, title, plot, table, note, wide=len(found) > NARROW_PAIRS)]
    return []


def solved(name: str, told: Compared) -> Table:
    """Which scenes were solved before, after, by both, by neither."""
    before, after = ({e["seed"]: bool(e.get("success")) for e in side.episodes} for side in (told.before, told.after))
    kinds = {"both": (True, True), "won": (False, True), "lost": (True, False), "neither": (False, False)}
    rows: list[list[Cell]] = []
    for kind, ends in kinds.items():
        seeds = [seed for seed in sorted(before) if (before[seed], after[seed]) == ends]
        rows.append([kind, len(seeds), format_seeds(seeds).replace(",", ", ") if seeds else ""])
    return Table(name, ["solved before and after", "scenes", "seeds"], rows)


def reach(name: str, sides: Sequence[Side]) -> list[Chart]:
    """Success by the distance between boat and disk at the start."""
    rings = {side.label: [row for row in reach_envelope(side.episodes) if row["episodes"]] for side in sides}
    names = list(dict.fromkeys(row["bin_cm"] for rows in rings.values() for row in rows))
    order = sorted(names, key=lambda ring: (ring == "outside", float(ring.split("-")[0]) if ring[0].isdigit() else 0.0))
    series = []
    for i, (label, rows) in enumerate(rings.items()):
        told = [(order.index(r["bin_cm"]), r["successes"], r["episodes"]) for r in rows if r["successes"] is not None]
        told.sort()
        points = [(float(x), 100 * k / n) for x, k, n in told]
        bars = [interval_at(x, k, n) for x, k, n in told]
        if points:
            series.append(Series(label, points, bars=bars, ink=ink_of(i)))
    if not series:
        return []
    table = Table(
        name, ["evaluation", "start, cm", "episodes", "touched", "successes"],
        [[label, *(row[key] for key in ("bin_cm", "episodes", "touched", "successes"))]
         for label, rows in rings.items() for row in rows],
    )  # fmt: skip
    plot = Lines("Reach", "distance of boat and disk at the start, cm", "success, %", series, (0.0, 100.0), order)
    note = "Success by where the boat began; bars: Clopper-Pearson, 95 %. Few scenes lie in a ring: see the table."
    return [Chart(name, "Success by distance at the start", plot, table, note)]


def rewards(name: str, sides: Sequence[Side]) -> list[Chart]:
    """The mean of each term of the reward, side by side."""
    priced = {side.label: [terms_of(episode) for episode in side.episodes] for side in sides}
    names = list(dict.fromkeys(key for rows in priced.values() for row in rows for key in row))
    told = {label: {key: _mean(rows, key) for key in names} for label, rows in priced.items()}
    order = [key for key in names if any(means[key] is not None for means in told.values())]
    if len(order) < 2:
        return []
    words = [key.replace("_", " ") for key in order]
    series = [
        Series(label, [(float(i), y) for i, key in enumerate(order) if (y := means[key]) is not None], ink=ink_of(at),
               joined=False)
        for at, (label, means) in enumerate(told.items())
    ]  # fmt: skip
    table = Table(name, ["evaluation", *words], [[label, *(m[key] for key in order)] for label, m in told.items()])
    plot = Lines("What the held-out reward is made of", "term", "mean, cm", series, x_names=words, level=0.0)
    note = "Mean of each term over the held-out episodes that tell it (reward v1), and of the whole."
    return [Chart(name, "What the held-out reward is made of", plot, table, note)]


def terms_of(episode: Mapping[str, Any]) -> dict[str, Any]:
    """What an episode's reward is made of, and the whole: as it was recorded, else by the reward that scores every
    held-out evaluation; empty if the metrics for that are not there."""
    if recorded := {key.removeprefix(TERM): value for key, value in episode.items() if key.startswith(TERM)}:
        return {**recorded, IN_ALL: episode.get("reward")}
    try:
        terms = dict(documented_reward().terms(episode))
    except (KeyError, TypeError, ValueError, VlaRlError):
        return {}
    return {**{key: value for key, value in terms.items() if key != "total"}, IN_ALL: terms["total"]}


def interval_at(x: float, k: int, n: int) -> tuple[float, float, float]:
    """The exact 95 % interval of a share, in per cent, where a chart wants it."""
    low, high = clopper_pearson(k, n)
    return float(x), 100 * low, 100 * high


def ink_of(i: int) -> int:
    """The base has the colour that it has in every funnel, the first policy that of a trained one."""
    return {0: 1, 1: 0}.get(i, i)


def _yes(episode: Mapping[str, Any]) -> bool | None:
    told = episode.get("success")
    return None if told is None else bool(told)


def _line(pair: Pair, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Cell]:
    ends: tuple[Any, Any] = pair.solved_before, pair.solved_after
    kind = {(False, True): "won", (True, False): "lost", (True, True): "both", (False, False): "neither"}.get(ends, "")
    return [pair.seed, pair.before, pair.after, outcome(before), outcome(after), kind]


def _mean(rows: Rows, key: str) -> float | None:
    told = [value for row in rows if (value := number(row.get(key))) is not None]
    return fmean(told) if told else None
