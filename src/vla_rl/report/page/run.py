"""The report of one training run, out of its own files.

In: what `rundata` read, the differences of its configuration from the defaults, films. Out: a page. It says of whatever
is missing or sealed that it is; a run that belongs to a registration is told as its run and never as its result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from vla_rl.prereg.delta import Op, write_path
from vla_rl.report import funnel
from vla_rl.report.page import outcomes, steps
from vla_rl.report.page.model import (
    Block,
    Cell,
    Chart,
    Charts,
    Code,
    Facts,
    Film,
    Films,
    Headline,
    Page,
    Points,
    Section,
    Table,
    Text,
    gathered,
)  # fmt: skip
from vla_rl.report.page.outcomes import Compared, Side, compared
from vla_rl.report.page.plots import Lines, Series, Stages
from vla_rl.report.page.rundata import RunData, section
from vla_rl.report.tables import TEST_NAMES
from vla_rl.stats.intervals import clopper_pearson

NO_VERDICT = "A report of one run judges nothing: whether a change counts is for a registration to say beforehand."
ONE_SEED = "One run of one training seed: the interval is over scenes and does not tell how another seed would end."


def run_page(data: RunData, deltas: Sequence[Op] | str, films: Sequence[Film] = ()) -> Page:
    """The page.

    Args:
        deltas: what leads from the defaults to its configuration, or why that is not known.
    """
    sides = sides_of(data)
    first_last = compared(sides[0], sides[-1]) if len(sides) > 1 else None
    run = section(data.config, "run")
    name = str(run.get("name") or data.directory.name)
    parts = [
        Section("state", "Where it stands", list(_state(data))),
        Section("learning", "Learning", list(_learning(data))),
        Section("scenes", "Same scenes, before and after", list(_scenes(data, first_last))),
        Section("funnel", "Touch, pinch, lift, success", list(_funnel(data))),
        Section("reach", "Reach", list(_or(outcomes.reach("reach", _ends(sides)), _no_evaluation(data)))),
        Section("reward", "Reward", list(_reward(data, sides))),
        Section("groups", "Groups", list(_or(steps.groups({"": data.steps}), _no_steps(data)))),
        Section("drift", "Ratio, KL, surprise", list(_or(steps.drift({"": data.steps}), _no_steps(data)))),
        Section("films", "Films", list(_films(data, films))),
        Section("time", "Time and memory", list(_time(data))),
        Section("config", "Configuration", list(_config(data, deltas))),
        Section("provenance", "Where it was made", list(_provenance(data))),
    ]
    name = f"{name}: {data.directory.resolve().name}"
    return Page(name, "training run", str(data.directory), _headline(data, sides, first_last), gathered(parts))


def sides_of(data: RunData) -> list[Side]:
    """The evaluations that may be told and whose episodes are there, by updates."""
    rows = {row["step"]: row for row in data.evaluations}
    return [
        Side("before" if step == 0 else f"{step} updates", data.held_out[step], rows[step])
        for step in sorted(rows)
        if step in data.held_out
    ]


# ------------------------------------------------------------------------------------------------------------- headline
def _headline(data: RunData, sides: Sequence[Side], told: Compared | str | None) -> Headline:
    more = []
    planned = data.planned
    if planned is not None and data.done < planned:
        more.append(f"{data.done} of {planned} steps are on record; this is not what the whole run came to.")
    if data.hidden:
        more.append(f"Held-out evaluations are sealed ({data.seal.why}). They are opened by: {_opener(data)}")
    if data.registered:
        more.append(_belonging(data))
    if isinstance(told, Compared):
        won = f"{told.read['won']} scenes were won and {told.read['lost']} lost. Brackets: 95 %, paired by scene."
        return Headline(told.sentence, more=[won, ONE_SEED, *more, NO_VERDICT])
    if isinstance(told, str):
        return Headline(f"The evaluations cannot be compared: {told}.", tone="open", more=more)
    if data.evaluations:
        row = data.evaluations[-1]
        return Headline(f"One held-out evaluation, after {row['step']} updates: {_count(row)}.", more=more, tone="open")
    text = "The held-out evaluations are sealed." if data.hidden else "There is no held-out evaluation yet."
    return Headline(text, tone="open", more=more)


def _belonging(data: RunData) -> str:
    told = data.registered
    kind = "an exploratory attempt" if told.get("exploratory") else "an attempt"
    return (
        f"It is {kind} ({told.get('attempt')}: rung {told.get('rung')}, arm {told.get('arm')}) of the registration "
        f"{told.get('id')}, whose result is told by: vla-rl report {told.get('id')}"
    )


def _opener(data: RunData) -> str:
    return f"vla-rl prereg read {data.registered.get('id', 'ID')} READ"


def _count(row: Mapping[str, Any]) -> str:
    k, n = row.get("successes"), row.get("trials")
    if type(k) is not int or type(n) is not int or not 0 <= k <= n or not n:
        return "it counts no successes"
    low, high = clopper_pearson(k, n)
    return f"{k}/{n} successes, {100 * k / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


# ------------------------------------------------------------------------------------------------------------- sections
def _state(data: RunData) -> Iterator[Block]:
    planned, beat = data.planned, data.heartbeat
    pairs = [("steps", f"{data.done} of {'?' if planned is None else planned}")]
    if beat:
        pairs.append(("last heartbeat", f"{beat.get('phase', '?')} at step {beat.get('step', '?')}"))
    last = data.steps[-1] if data.steps else {}
    if (hours := steps.number(last.get("gpu_h_total"))) is not None:
        pairs.append(("device hours", f"{hours:.3g}"))
    pairs.append(("evaluations", f"{len(data.evaluations)} told, {len(data.hidden)} sealed"))
    yield Facts(pairs)
    if fired := list(_fired(data)):
        yield Points(fired)
    undone = [str(row["step"]) for row in data.steps if row.get("rolled_back")]
    skipped = [str(row["step"]) for row in data.steps if row.get("step_skipped") and not row.get("rolled_back")]
    for steps_, what in ((undone, "Updates that were taken back"), (skipped, "Steps without an update")):
        if steps_:
            yield Text(f"{what}: {', '.join(steps_[:40])}{' …' if len(steps_) > 40 else ''}")
    if data.faults:
        yield Text("Not everything could be read:", "warning")
        yield Points(data.faults)


def _fired(data: RunData) -> Iterator[str]:
    """Tripwires. Of one that an evaluation fired, a sealed run tells the name alone."""
    for kind, rows in (("step", data.steps), ("evaluation after", data.evaluations)):
        for row in rows:
            for wire in row.get("tripwires") or ():
                yield f"{kind} {row['step']}: {_wire(wire)}"
    known = {str(w.get("wire")) for row in (*data.steps, *data.evaluations) for w in row.get("tripwires") or ()}
    for wire in data.heartbeat.get("tripwires") or ():
        if isinstance(wire, dict) and str(wire.get("wire")) not in known:
            yield f"at the end: tripwire {wire.get('wire')}" if data.hidden else f"at the end: {_wire(wire)}"


def _wire(wire: Mapping[str, Any]) -> str:
    value, line = steps.number(wire.get("value")), steps.number(wire.get("threshold"))
    ends = "it stops the run" if wire.get("mode") == "armed" else "recorded"
    told = "" if value is None else f", {value:.4g}" + ("" if line is None else f" against {line:.4g}")
    return f"tripwire {wire.get('wire')}{told} ({ends})"


def _learning(data: RunData) -> Iterator[Block]:
    charts = [*steps.learning({"": data.steps}), *_held_out(data)]
    yield from _or(charts, _no_steps(data))
    if data.evaluations:
        yield _evaluations(data)
    if data.hidden:
        yield Text(
            f"Sealed: the evaluations after {', '.join(map(str, data.hidden))} updates ({data.seal.why}).", "open"
        )


def _held_out(data: RunData) -> list[Chart]:
    rows = [row for row in data.evaluations if type(row.get("successes")) is int and row.get("trials")]
    if not rows:
        return []
    told = [(row["step"], row["successes"], row["trials"]) for row in rows]
    points = [(step, 100 * k / n) for step, k, n in told]
    bars = [outcomes.interval_at(step, k, n) for step, k, n in told]
    title = "Held-out success"
    plot = Lines(title, "updates", "success, %", [Series("held out", points, bars=bars)], (0.0, 100.0))
    ends = [(round(low, 2), round(high, 2)) for _, low, high in bars]
    table = Table("held-out-success", ["updates", "successes", "episodes", "low, %", "high, %"],
                  [[*point, *end] for point, end in zip(told, ends, strict=True)])  # fmt: skip
    tests = {TEST_NAMES.get(str(row.get("success_test")), "") for row in rows} - {""}
    test = f", {tests.pop()}" if len(tests) == 1 else ""
    note = f"Share of {rows[0]['trials']} held-out scenes{test}; bars: Clopper-Pearson, 95 %."
    return [Chart("held-out-success", title, plot, table, note)]


def _evaluations(data: RunData) -> Table:
    keys = ("touched", "pinched", "lifted", "tipped", "knockaways")
    rows: list[list[Cell]] = [
        [row["step"], _count(row), steps.number(row.get("reward_mean")), *(row.get(key) for key in keys)]
        for row in data.evaluations
    ]
    return Table("evaluations", ["updates", "success [95 %]", "reward, cm", *keys], rows, "Held-out evaluations")


def _scenes(data: RunData, told: Compared | str | None) -> Iterator[Block]:
    if not isinstance(told, Compared):
        yield Text(f"They cannot be compared: {told}." if told else _no_pair(data), "open")
        return
    yield Charts(outcomes.pairs("scenes", told, f"Before and after {told.after.label}"))
    yield outcomes.solved("solved", told)


def _no_pair(data: RunData) -> str:
    if data.hidden:
        return f"Sealed: {data.seal.why}."
    if len(data.evaluations) > 1:
        return "The episodes of the evaluations are not in episodes.jsonl, so scenes cannot be told one by one."
    return "This takes two held-out evaluations; there is one so far." if data.evaluations else _no_evaluation(data)


def _funnel(data: RunData) -> Iterator[Block]:
    rows = [row for row in map(_stages, data.evaluations) if row is not None]
    if not rows:
        yield Text(_no_evaluation(data), "open")
        return
    table = Table("funnel", ["evaluation", "episodes", *funnel.STAGES],
                  [[row.policy, row.n, *(None if pair is None else pair[0] for pair in row.counts)]
                   for row in rows])  # fmt: skip
    title = "Funnel of the held-out evaluations"
    yield Charts([Chart("funnel", title, Stages(title, "Held out", rows), table, wide=True)])


def _stages(row: Mapping[str, Any]) -> funnel.Row | None:
    n = row.get("trials")
    if type(n) is not int or not n:
        return None
    told = [row.get(key) for key in ("touched", "pinched", "lifted", "successes")]
    counts = tuple((k, n) if type(k) is int else None for k in told)
    label = "base" if row["step"] == 0 else f"{row['step']} updates"
    test = TEST_NAMES.get(str(row.get("success_test")), "")
    return funnel.Row("held out", label, counts, n, test=test) if any(counts) else None


def _reward(data: RunData, sides: Sequence[Side]) -> Iterator[Block]:
    yield from _or([*steps.terms(data.episodes), *outcomes.rewards("held-out-terms", _ends(sides))],
                   "episodes.jsonl tells of no rewards.")  # fmt: skip


def _films(data: RunData, films: Sequence[Film]) -> Iterator[Block]:
    if films:
        yield Text("A film shows, it proves nothing: it was played by the software and on the machine of that moment.")
        yield Films(films)
        return
    where = f"vla-rl prereg report {data.registered.get('id')} --videos SEEDS" if data.registered else (
        f"vla-rl report {data.directory} --videos SEEDS"
    )  # fmt: skip
    yield Text(f"None. Base and trained policy are filmed side by side by: {where}", "open")


def _time(data: RunData) -> Iterator[Block]:
    yield from _or(steps.time(data.steps), _no_steps(data))
    if (table := steps.time_table(data.steps)) is not None:
        yield table


def _config(data: RunData, deltas: Sequence[Op] | str) -> Iterator[Block]:
    if isinstance(deltas, str):
        yield Text(deltas, "open")
    else:
        yield delta_table("deltas", deltas, "What differs from the defaults of this version")
    if data.config:
        yield Code("config.yaml, resolved", yaml.safe_dump(dict(data.config), sort_keys=False))


def delta_table(name: str, ops: Sequence[Op], caption: str) -> Table:
    """Changes, a row each."""
    rows: list[list[Cell]] = [
        [write_path(op.path), "" if op.op == "add" else words(op.before), "" if op.op == "remove" else words(op.after)]
        for op in ops
    ]
    return Table(name, ["key", "from", "to"], rows or [["nothing differs", "", ""]], caption)


def words(value: Any) -> str:
    """A value of a configuration in one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:297]}…"


def _provenance(data: RunData) -> Iterator[Block]:
    if not data.launches:
        yield Text("There is no manifest that could be read: nobody knows what this was made with.", "warning")
        return
    last = data.launches[-1]
    git, host, scene, packages = (section(last, name) for name in ("git", "host", "scene", "packages"))
    dirty = " with files that differ from it" if git.get("dirty") else ""
    pairs = [
        ("launches", f"{len(data.launches)}, the last at {last.get('utc', '?')}"),
        ("commit", f"{git.get('commit') or 'none'}{dirty}"),
        ("machine", ", ".join(str(v) for v in (host.get("system"), host.get("machine")) if v) or "?"),
        ("device", str(last.get("device") or section(data.config, "run").get("device") or "?")),
        ("seed", str(section(data.config, "run").get("seed"))),
        ("protocol", str(scene.get("protocol") or "?")),
        ("scene", str(scene.get("scene_hash") or "?")[:16]),
        ("configuration", str(last.get("config_digest") or "?")[:16]),
        ("command", "vla-rl " + " ".join(map(str, last.get("argv") or ["?"]))),
    ]
    yield Facts([(name, value) for name, value in pairs if value != "?"])
    if packages:
        rows: list[list[Cell]] = [[str(name), None if v is None else str(v)] for name, v in packages.items()]
        yield Table("packages", ["package", "version"], rows, "Package versions", folded=True)


# ---------------------------------------------------------------------------------------------------------------- words
def _or(charts: Sequence[Chart], why: str) -> Iterator[Block]:
    """The charts, or why there are none."""
    yield Charts(charts) if charts else Text(why, "open")


def _ends(sides: Sequence[Side]) -> Sequence[Side]:
    """First and last: what lies between them is in the learning curve."""
    return [sides[0], sides[-1]] if len(sides) > 1 else sides


def _no_steps(data: RunData) -> str:
    return "No step is on record yet." if not data.steps else "The rows of train.jsonl do not tell this."


def _no_evaluation(data: RunData) -> str:
    return f"Sealed: {data.seal.why}." if data.hidden else "No held-out evaluation is on record that tells this."
