"""What is on record of a registration: claim, gates, attempts and cost, amendments, configuration, ledger.

In: a registration as it stands. Out: blocks of a page. The ledger tells what happened and when; outcomes that are
sealed are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.registered import label_of
from vla_rl.prereg.state import EVENTS
from vla_rl.report.page.model import Block, Cell, Code, Facts, Points, Table, Text
from vla_rl.report.page.run import delta_table, words


def claim(loaded: Loaded) -> Iterator[Block]:
    """What was said before anything ran."""
    registration, told = loaded.registration, loaded.registration.claim
    for paragraph in registration.summary.strip().split("\n\n"):
        yield Text(" ".join(paragraph.split()), quoted=True)
    effect = "not stated" if told.smallest_effect is None else f"{told.smallest_effect:g}"
    yield Facts([
        ("hypothesis", told.hypothesis), ("direction", str(told.direction)), ("smallest effect", effect),
        ("unit", told.unit), ("population", told.population), ("head", told.head), ("protocol", told.protocol),
        ("look", told.look), ("seen beforehand", told.data_seen),
    ])  # fmt: skip


def ending(loaded: Loaded) -> Iterator[Block]:
    """How it ended, and what was found to be wrong since; nothing if neither."""
    now = loaded.state
    if now.closing:
        why = f": {now.closing['reason']}" if "reason" in now.closing else "."
        yield Text(f"{str(now.closing['event']).capitalize()}{why}")
        yield from _points("Banked:", now.closing.get("banked", ()))
        yield from _points("Inherited by a successor:", now.closing.get("inherits", ()))
    yield from _points("Errata:", [("disputes the verdict: " if e["disputes"] else "") + e["text"] for e in now.errata])


def gates(loaded: Loaded) -> Iterator[Block]:
    """Gates as they were judged, and the boundaries of rungs."""
    now, rows = loaded.state, list[list[Cell]]()
    before = {gate.id: gate.before for gate in loaded.registration.gates}
    for name in dict.fromkeys([*before, *now.gates]):
        judged = now.gates.get(name)
        over = ", overridden" if name in now.once_overridden else ""
        decision = f"{judged['decision']}{over}" if judged else "not judged"
        line = Outcome.from_record(judged["outcome"]).line() if judged else ""
        rows.append([name, before.get(name, "an amendment took it away"), decision, line])
    rows += [[f"end of {rung}", "", decision, ""] for rung, decision in now.rungs.items()]
    if rows:
        yield Table("gates", ["gate or boundary", "before", "decision", "outcome"], rows, "Gates and boundaries")


def attempts(loaded: Loaded) -> Iterator[Block]:
    """Every launch with its end and its cost."""
    registration, pool = loaded.registration, account(loaded.registration, loaded.state)
    yield Facts(
        [(unit, f"{pool.spent[unit]:.4g} of {limit:.4g} spent, reads included") for unit, limit in pool.limit.items()]
    )
    rows: list[list[Cell]] = []
    for a in loaded.state.attempts:
        end = a.end or {"how": "not ended", "why": ""}
        kind = ", ".join(
            name for name, holds in (("exploratory", a.exploratory), ("other software", bool(a.elsewhere))) if holds
        )
        rows.append(
            [
                a.number,
                a.rung,
                label_of(registration, a.arm),
                kind,
                str(end["how"]),
                str(end["why"] or ""),
                a.hours,
                a.place,
            ]
        )
    if rows:
        yield Table("attempts", ["attempt", "rung", "arm", "kind", "end", "why", "hours", "run"], rows)
    else:
        yield Text("Nothing was launched yet.", "open")


def amendments(loaded: Loaded) -> Iterator[Block]:
    """Every change with its reason, and what it made exploratory."""
    made = loaded.effective.amendments
    if not made:
        yield Text("None.")
    for each in made:
        effects = ", ".join(each.effects) or "none"
        yield Text(
            f"{each.number}. {each.kind}, {each.created_utc} (seen: {each.data_seen}; made exploratory: {effects})"
        )
        yield Text(each.reason, quoted=True)
        yield delta_table(f"amendment-{each.number}", each.operations(), f"Amendment {each.number}")


def config(loaded: Loaded) -> Iterator[Block]:
    """Arms, rungs, the whole document, its digests."""
    registration, effective = loaded.registration, loaded.effective
    yield Facts([("registration", effective.digest[:16]), ("configuration", effective.config_digest[:16]),
                 ("amendments", str(len(effective.amendments)))])  # fmt: skip
    for name, rows in (
        ("arms", [[arm.label or arm.id, arm.id, _set(arm.set)] for arm in registration.arms]),
        ("rungs", [[rung.id, str(rung.starts_from), _set(rung.set)] for rung in registration.ladder]),
    ):
        heads = ["arm", "id", "sets"] if name == "arms" else ["rung", "starts from", "sets"]
        yield Table(name, heads, rows, f"{name.capitalize()} and what they set")
    yield Code("The registration as it is in force", yaml.safe_dump(_plain(effective.plain), sort_keys=False))


def ledger(loaded: Loaded) -> Iterator[Block]:
    """Every line in words."""
    rows: list[list[Cell]] = [
        [e.seq + 1, e.utc, e.event, EVENTS.get(e.event, ""), _told(e), e.hash[:12]] for e in loaded.entries
    ]
    yield Table(
        "ledger", ["line", "time", "event", "what happened", "of what", "hash"], rows, "The ledger", folded=True
    )
    head = loaded.entries[-1]
    yield Facts([("lines", str(len(rows))), ("head", f"{head.seq + 1}:{head.hash}")])
    yield Text(
        "Whoever notes the head elsewhere can show later that nothing before it was changed: "
        "vla-rl prereg verify ID --head LINE:HASH"
    )


def _told(entry: Entry) -> str:
    """The facts of an entry that people look for."""
    data, parts = entry.data, []
    for key in ("number", "kind", "attempt", "rung", "arm", "how", "gate", "decision", "read", "measurement", "verdict",
                "item", "by", "run", "why", "reason", "text"):  # fmt: skip
        value = data.get(key)
        if isinstance(value, str | int | float) and value != "":
            parts.append(f"{key} {value}")
    outcome = data.get("outcome")
    if isinstance(outcome, Mapping):
        parts.append(str(outcome.get("status")))
    text = ", ".join(parts)
    return text if len(text) <= 240 else f"{text[:239]}…"


def _set(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{path} = {words(value)}" for path, value in values.items()) or "nothing"


def _points(title: str, items: Any) -> Iterator[Block]:
    if found := [str(item) for item in items]:
        yield Text(title)
        yield Points(found)


def _plain(value: Any) -> Any:
    """Mappings and lists that YAML can write."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
