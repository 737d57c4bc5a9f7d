"""The tables of `vla-rl replay`: a stored wave held against its policy, and a run under two prices.

In: the reports of `cli.replay` (see `evals.integrity` and `rl.reprice`). Out: rich groups. No numbers are computed
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_rl.report.evaluation import percent
from vla_rl.report.tables import number

NAMED = 5  # findings that are printed; --json has all


def wave(report: Mapping[str, Any]) -> Group:
    """What was stored, what differs, and where first."""
    masks, logp = report["masks"], report["logp"]
    table = Table(title=f"Step {report['step']}, sampled by {report['policy']['source']}", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("episodes stored, missing", f"{report['episodes']}, {len(report['episodes_missing'])}")
    table.add_row("rows, tokens", f"{masks['rows']}, {masks['tokens']}")
    table.add_row("masks that differ", f"{len(masks['mismatched'])}")
    table.add_row("records that contradict themselves", f"{len(report['records'])}")
    table.add_row("episodes of other weights", f"{len(report['refused'])}")
    if logp:
        table.add_row("log-probabilities scored again, equal", f"{logp['tokens']}, {logp['equal']}")
        spread = ", ".join(number(logp[name], ".3g") for name in ("max", "p99", "mean"))
        table.add_row("|difference|, nats: max, p99, mean", spread)
    lines = [_finding(finding) for finding in [*masks["mismatched"], *report["records"]][:NAMED]]
    lines += [f"{name}: sampled by other weights, not scored" for name in report["refused"][:NAMED]]
    lines += [_token(name, logp[name]) for name in ("first", "worst") if logp and logp[name]]
    if logp is None:
        lines.append("log-probabilities were not scored again: the weights that sampled them are gone")
    lines.append("sound" if report["sound"] else "NOT what this policy would have sampled")
    return Group(table, *map(Text, lines))


def advantages(report: Mapping[str, Any]) -> Group:
    """What the run used beside what it would have used."""
    sides = [report["used"]] + ([report["repriced"]] if report["repriced"] else [])
    headings = ("", "as run", "repriced")[: len(sides) + 1]
    steps = report["steps"]
    table = Table(title=f"Steps {steps[0]} to {steps[-1]}, {sides[0]['episodes']} episodes", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for label, cell in (
        ("reward", lambda s: s["reward"]["_target_"].rpartition(".")[2]),
        ("reward, mean, cm", lambda s: number(s["reward_mean_cm"], "+.2f")),
        ("groups kept", lambda s: f"{s['groups_kept']}/{s['groups']}"),
        ("dropped", lambda s: ", ".join(f"{n} {why}" for why, n in s["groups_dropped"].items() if n) or "–"),
        ("groups with both outcomes", lambda s: f"{s['groups_mixed']}/{s['groups']}"),
        ("group spread, median, cm", lambda s: number(s["median_group_std_cm"], ".3f")),
        ("positive advantage on successes", lambda s: percent(s["success_share"])),
    ):
        table.add_row(label, *map(cell, sides))
    terms = Table(title="Where the advantage comes from", title_justify="left")
    for heading in ("term", *(f"{side}\n{what}" for side in headings[1:] for what in ("mass", "share", "mean cm"))):
        terms.add_column(heading, justify="left" if heading == "term" else "right")
    for name in dict.fromkeys(name for side in sides for name in side["terms"]):
        terms.add_row(name, *(cell for side in sides for cell in _term(side["terms"].get(name))))
    return Group(table, terms, *map(Text, _closing(report)))


def _closing(report: Mapping[str, Any]) -> list[str]:
    lines = []
    if against := report["against"]:
        lines.append(
            f"taught by both {against['taught_by_both']}, only as run {against['only_used']}, only repriced "
            f"{against['only_other']}; praised by one and blamed by the other {against['turned']}; correlation "
            f"{number(against['correlation'], '.3f')}"
        )
    if departed := report["departures"]:
        lines.append(f"NOT as recorded: reward or advantage of {len(departed)} episodes, first {departed[0]}")
    return lines


def _term(term: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if term is None:
        return "", "", ""
    return percent(term["mass_share"]), percent(term["share"]), number(term["mean_cm"], "+.2f")


def _finding(finding: Mapping[str, Any]) -> str:
    where = finding["episode"] if finding["replan"] is None else f"{finding['episode']} replan {finding['replan']}"
    if "token" not in finding:
        return f"{where}: {finding['what']}"
    legal = {True: "legal", False: "illegal"}
    told = f"bin {finding['bin']} is stored as {legal[finding['stored']]}, recomputed as {legal[finding['recomputed']]}"
    return f"{where} token {finding['token']}: {told}"


def _token(name: str, at: Mapping[str, Any]) -> str:
    return (
        f"{name} difference: {at['episode']} replan {at['replan']} token {at['token']} (bin {at['bin']}): stored "
        f"{at['stored']:.6f}, scored again {at['rescored']:.6f}"
    )
