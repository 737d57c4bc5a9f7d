"""The report of a registration, out of ledger and evidence.

In: a registration as it stands, the evidence that was opened, its films. Out: a page. Nothing that is sealed has
evidence, so nothing of it can be here; what is still sealed is named. Left out: REPORT.md and its figures, which are
committed with the registration (`report.registration`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.registered import arms_of, evidence_arm
from vla_rl.prereg.state import ENDS
from vla_rl.report import curves, funnel, intervals
from vla_rl.report.opened import Found, Opened, opened
from vla_rl.report.page import outcomes, record, steps
from vla_rl.report.page.model import (
    Block,
    Cell,
    Chart,
    Charts,
    Film,
    Films,
    Headline,
    Page,
    Section,
    Table,
    Text,
    Tone,
    gathered,
)  # fmt: skip
from vla_rl.report.page.outcomes import Compared, Side, compared
from vla_rl.report.page.plots import Forest, Lines, Series, Stages
from vla_rl.report.tables import change

TONES: dict[str, Tone] = {"SUPPORTED": "good", "REFUTED": "bad", "INCONCLUSIVE": "open", "INVALID": "warning"}
MOST_SIDES = 4  # side by side in one chart
MOST_PAIRED = 4  # arms whose scenes are drawn one by one; the table has all


def registration_page(loaded: Loaded, found: Found, films: Sequence[Film] = ()) -> Page:
    """The page."""
    meta, seen = loaded.registration.meta, opened(loaded.registration, found)
    paired = _paired(seen)
    series = _runs(loaded, seen)
    single = next(iter(series.values())) if len(series) == 1 else None
    parts = [
        Section("claim", "Claim", list(record.claim(loaded))),
        Section("reads", "Reads", list(_reads(loaded, seen))),
        Section("sealed", "What is sealed", list(_sealed(loaded, found))),
        Section("learning", "Learning", list(_learning(loaded, seen))),
        Section("scenes", "Same scenes, before and after", list(_scenes(paired))),
        Section("funnel", "Touch, pinch, lift, success", list(_funnel(seen, meta.id))),
        Section("reach", "Reach and reward", list(_by_side(_sides(paired)[:MOST_SIDES]))),
        Section("groups", "Groups", list(_series(steps.groups(series)))),
        Section("drift", "Ratio, KL, surprise", list(_series(steps.drift(series)))),
        Section("time", "Time and memory", list(_series(steps.time(single) if single else []))),
        Section("films", "Films", list(_films(loaded, films))),
        Section("attempts", "Attempts and budget", list(record.attempts(loaded))),
        Section("amendments", "Amendments", list(record.amendments(loaded))),
        Section("config", "Configuration", list(record.config(loaded))),
        Section("ledger", "Ledger", list(record.ledger(loaded))),
    ]
    if ending := list(record.ending(loaded)):
        parts.insert(2, Section("end", "End and errata", ending))
    last = loaded.entries[-1]
    frozen, now = loaded.entries[0].utc, f"{loaded.state.name} at {last.utc}"
    subtitle = f"{meta.author}; frozen {frozen}, {now}; line {last.seq + 1} of the ledger, {last.hash[:16]}"
    return Page(f"{meta.id}: {meta.title}", "registration", subtitle, _headline(loaded), gathered(parts))


def _runs(loaded: Loaded, seen: Sequence[Opened]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Rows of the opened series by rung and arm; the longest where one run is registered up to several steps."""
    runs: dict[str, Sequence[Mapping[str, Any]]] = {}
    for each in (each for each in seen if each.evidence.kind == "series"):
        name = curves.name_of(loaded.registration, each)
        if len(each.evidence.rows) > len(runs.get(name, ())):
            runs[name] = each.evidence.rows
    return runs


def _headline(loaded: Loaded) -> Headline:
    now, more = loaded.state, []
    for read in loaded.registration.reads:
        if read.role == "primary":
            told = now.reads.get(read.id)
            line = Outcome.from_record(told["outcome"]).line() if told else "not read"
            more.append(f"{read.id} (primary): {line}")
    if any(erratum["disputes"] for erratum in now.errata):
        more.append("The verdict is disputed: see the errata.")
    if now.verdict is None:
        return Headline(f"No verdict yet; the registration is {now.name}.", tone="open", more=more)
    name = str(now.verdict["verdict"])
    sentence = str(now.verdict["sentence"]).removeprefix(name).strip()
    return Headline(sentence, name, TONES.get(name, "plain"), [*map(str, now.verdict["reasons"]), *more])


def _reads(loaded: Loaded, seen: Sequence[Opened]) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    for read in loaded.registration.reads:
        told = loaded.state.reads.get(read.id)
        role = read.role + (", exploratory" if read.id in loaded.effective.exploratory else "")
        role += ", never pooled" if read.never_pool else ""
        outcome = Outcome.from_record(told["outcome"]) if told else None
        given = told is not None and any(name in loaded.state.handed_in for name in told["evidence"])
        line = (
            "not read: sealed"
            if outcome is None
            else outcome.line() + (" (handed in, not played here)" if given else "")
        )
        rows.append([read.id, role, outcome.status if outcome else "–", read.question, line])
    known = intervals.rows(loaded, seen)
    if known:
        title = "Reads with their intervals"
        recorded = sum(read.id in loaded.state.reads for read in loaded.registration.reads)
        table = Table("intervals", ["read", "role", "status", "unit", "estimate", "low", "high", "level", "n", "line"],
                      [[r.read, r.role, r.status, r.unit, r.estimate, r.low, r.high, r.level, r.n, r.line]
                       for r in known])  # fmt: skip
        yield Charts(
            [Chart("intervals", title, Forest(title, loaded.registration.id, known, recorded), table, wide=True)]
        )
    yield Table("reads", ["read", "role", "status", "question", "outcome"], rows)
    yield from record.gates(loaded)


def _sealed(loaded: Loaded, found: Found) -> Iterator[Block]:
    registration, names = loaded.registration, []
    for m in registration.measurements:
        waiting = [arm for arm in arms_of(registration, m) if (m.id, evidence_arm(arm)) not in found]
        if waiting:
            arms = "" if len(arms_of(registration, m)) == 1 else f" of {', '.join(a.label or a.id for a in waiting)}"
            names.append(f"{m.id}{arms}")
    if names:
        yield Text(f"Not opened, so that nothing here tells of it: {'; '.join(names)}.", "open")
        ended = loaded.state.name in ENDS
        opener = f"It is opened once, by: vla-rl prereg read {registration.id} READ"
        yield Text(f"The registration is {loaded.state.name}, so it stays so." if ended else opener)
    else:
        yield Text("Nothing: every registered measurement was opened.")


def _learning(loaded: Loaded, seen: Sequence[Opened]) -> Iterator[Block]:
    registration = loaded.registration
    told, panels, charts = curves.training(registration, seen), curves.held_out(registration, seen), []
    names = list(dict.fromkeys([*(c.label for c in told), *(name for p in panels for name in p.lines)]))
    if told:
        series = [
            Series(
                c.label + (f", {c.seeds} training seeds" if c.seeds > 1 else ""),
                [(p[0], 100 * p[1]) for p in c.points],
                [(p[0], 100 * p[2], 100 * p[3]) for p in c.points] if c.seeds > 1 else (), ink=names.index(c.label),
            )
            for c in told
        ]  # fmt: skip
        note = (
            f"Share of the sampled episodes of a wave that succeeded, mean over the last {curves.MEAN_OVER} waves. "
            "A band, where there is one: lowest to highest of the training seeds."
        )
        plot = Lines("Success of training waves", "step", "success, %", series, (0.0, 100.0))
        charts.append(
            Chart("training-success", plot.title, plot, steps.merged("training-success", "step", series), note)
        )
    for i, panel in enumerate(panels):
        charts.append(_held_out(f"held-out-{i + 1}", panel, names))
    yield from _series(charts, "No learning curve was opened.")


def _held_out(name: str, panel: curves.HeldOut, names: Sequence[str]) -> Chart:
    series, rows = [], []
    for label, points in panel.lines.items():
        bars = [outcomes.interval_at(step, k, n) for step, k, n in points]
        series.append(Series(label, [(s, 100 * k / n) for s, k, n in points], bars=bars, ink=names.index(label)))
        rows += [
            [label, *point, round(low, 2), round(high, 2)] for point, (_, low, high) in zip(points, bars, strict=True)
        ]
    table = Table(name, ["policy", "updates", "successes", "scenes", "low, %", "high, %"], rows)
    plot = Lines("Held-out success", "updates", "success, %", series, (0.0, 100.0))
    note = f"{panel.scenes}; bars: Clopper-Pearson, 95 %. Points at one step lie side by side."
    return Chart(name, f"Held out: {panel.scenes}", plot, table, note)


def _paired(seen: Sequence[Opened]) -> list[Compared]:
    """Each trained policy against the base on the same scenes, as far as both were opened."""
    bases = [each for each in seen if each.base and each.evidence.kind == "episodes"]
    told = []
    for after in (each for each in seen if not each.base and each.evidence.kind == "episodes"):
        for before in (base for base in bases if base.evidence.head == after.evidence.head):
            read = compared(_side("before", before), _side(f"{after.evidence.measurement}: {after.policy}", after))
            if isinstance(read, Compared):
                told.append(read)
                break
    return told


def _side(label: str, each: Opened) -> Side:
    e = each.evidence
    tests = {str(episode.get("success_test")) for episode in e.episodes}
    conditions = {"protocol": e.protocol, "scene_hash": e.scene_hash, "temperature": e.temperature, "head": e.head}
    return Side(label, e.episodes, {**conditions, "success_test": tests.pop() if len(tests) == 1 else None})


def _sides(paired: Sequence[Compared]) -> list[Side]:
    """The base and the policies that are held against it on its scenes."""
    if not paired:
        return []
    base = paired[0].before
    return [base, *(each.after for each in paired if each.before.episodes is base.episodes)]


def _scenes(paired: Sequence[Compared]) -> Iterator[Block]:
    if not paired:
        yield Text("No base and trained policy were opened on the same scenes, episode by episode.", "open")
        return
    rows: list[list[Cell]] = [
        [each.after.label, *map("{0[0]}/{0[1]}".format, (each.before.count, each.after.count)), each.read["won"],
         each.read["lost"], change(each.read["success"], scale=100, unit=" points"),
         change(each.read["reward_cm"], unit=" cm") if each.read["reward_cm"] else None]
        for each in paired
    ]  # fmt: skip
    heads = ["trained policy", "before", "after", "won", "lost", "success [95 %]", "reward [95 %]"]
    yield Table("paired", heads, rows, "Each trained policy against the base on the same scenes")
    yield Text(
        "Intervals are over scenes, policy by policy, and not corrected for looking at several. "
        "The registered reads decide."
    )
    charts = []
    for i, each in enumerate(paired[:MOST_PAIRED]):
        charts += outcomes.pairs(f"scenes-{i + 1}", each, each.after.label)
    if charts:
        yield Charts(charts)
    if len(paired) > MOST_PAIRED:
        yield Text(f"The first {MOST_PAIRED} of {len(paired)} policies are drawn.")


def _funnel(seen: Sequence[Opened], id: str) -> Iterator[Block]:
    rows = funnel.rows(seen)
    if not rows:
        yield Text("No evaluation was opened that tells it.", "open")
        return
    table = Table("funnel", ["evaluation", "policy", "episodes", "excluded", *funnel.STAGES],
                  [[r.evaluation, r.policy, r.n, r.excluded, *(None if p is None else p[0] for p in r.counts)]
                   for r in rows])  # fmt: skip
    title = "Funnel of the evaluations"
    yield Charts([Chart("funnel", title, Stages(title, id, rows), table, wide=True)])


def _by_side(sides: Sequence[Side]) -> Iterator[Block]:
    charts = [*outcomes.reach("reach", sides), *outcomes.rewards("held-out-terms", sides)]
    if not charts:
        yield Text("No episodes were opened that tell it.", "open")
        return
    if len(sides) == MOST_SIDES:
        yield Text("Of the base and the first policies of the table above.")
    yield Charts(charts)


def _series(
    charts: Sequence[Chart], why: str = "No series of a training run was opened that tells it."
) -> Iterator[Block]:
    yield Charts(charts) if charts else Text(why, "open")


def _films(loaded: Loaded, films: Sequence[Film]) -> Iterator[Block]:
    if films:
        yield Text(
            "The same seeds before and after. A film shows, it proves nothing: it was played by the software and on "
            "the machine of that moment."
        )
        yield Films(films)
    else:
        yield Text(f"None. They are made by: vla-rl prereg report {loaded.registration.id} --videos SEEDS", "open")
