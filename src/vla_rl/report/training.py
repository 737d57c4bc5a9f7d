"""What a training run shows: progress from its events, and the closing table from its files.

In: events, and a run directory. Out: lines, bars and tables on the terminal; rows to a mirror. Every number of the
closing summary is read back from the run's own files, so that what a person sees is what a machine can check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vla_rl.evals.paired import compare
from vla_rl.report import tables
from vla_rl.report.mirror import Mirror, NoMirror
from vla_rl.report.progress import ProgressView, mishap
from vla_rl.rl import events
from vla_rl.rollout.events import EpisodeRestarted, Event, PredictRound, WorkerReplaced


class TrainingView:
    """Turns a run's events into progress.

    Args:
        view: where to show them.
        mirror: gets every step and evaluation row.
        sealed: a registered read rests on the held-out evaluations, so that nothing here tells their outcomes.
    """

    def __init__(self, view: ProgressView, mirror: Mirror | None = None, *, sealed: bool = False) -> None:
        self.view, self.mirror, self.sealed = view, mirror or NoMirror(), sealed
        self._phase, self._stored = "starting", 0

    def on_event(self, event: Event) -> None:
        """Handle one event; unknown ones are ignored."""
        say = self.view.say
        match event:
            case events.RunStarted():
                done = f", {event.completed_steps} of them done" if event.completed_steps else ""
                say(f"run directory {event.run_dir}: {event.total_steps} steps{done}")
            case events.EvalStarted():
                self._phase, self._stored = f"held-out evaluation after {event.step} updates", 0
            case events.WaveStarted():
                self._phase, self._stored = f"step {event.step}: episodes", event.stored
            case PredictRound():
                done, total = event.done + self._stored, event.total + self._stored
                self.view.advance(self._phase, done, total, "episodes")
            case events.RowsScored():
                self.view.advance(f"step {event.step}: demonstrations", event.done, event.total, "rows")
            case events.UpdateProgress():
                self.view.advance(f"step {event.step}: update", event.done, event.total, "rows")
            case events.StepDone():
                self.mirror.log("train", event.row)
                say(_step_line(event.row, event.total_steps))
            case events.EvalDone() if self.sealed:
                say(f"held-out after {event.step} updates: sealed")
            case events.EvalDone():
                self.mirror.log("eval", event.row)
                counted = f": {tables.count(event.row)} successes" if "successes" in event.row else ""
                say(f"held-out after {event.step} updates{counted}")
            case events.GateJudged():
                say(f"gate {event.result['gate']}: {'passed' if event.result['passed'] else 'not passed'}")
            case events.WiresFired():
                say(f"step {event.step}: {', '.join(map(tables.firing, event.firings))}")
            case events.WireSilenced():
                say(f"step {event.step}: tripwire {event.wire} cannot fire: its captured line is {event.line:.4g}")
            case EpisodeRestarted() | WorkerReplaced():
                say(mishap(event))
            case events.RunEnded(finished=False):
                say(f"stopped after step {event.step}: {event.reason}")


def closing(directory: Path, *, finished: bool) -> dict[str, Any]:
    """Summary of a run from its files.

    Returns:
        JSON-able: `run_dir`, `finished`, `steps` (rows of train.jsonl), `evaluations` (rows of eval.jsonl), `reads`
        (the paired read of each but the first against the first; empty where an evaluator records no episodes), and
        `before`, `after`, `read`: those of the whole run, None where something is missing.
    """
    evaluations = _rows(directory / "eval.jsonl")
    episodes: dict[int, list[dict[str, Any]]] = {row["step"]: [] for row in evaluations}
    for row in _rows(directory / "episodes.jsonl"):
        if row["phase"] == "eval" and row["step"] in episodes:
            episodes[row["step"]].append(row)
    first, *later = [(row, episodes[row["step"]]) for row in evaluations] or [({}, [])]
    paired = all(played and "success_test" in row for row, played in (first, *later))
    reads = [compare(first[1], played, before_summary=first[0], after_summary=row) for row, played in later if paired]
    return {
        "run_dir": str(directory),
        "finished": finished,
        "steps": _rows(directory / "train.jsonl"),
        "evaluations": evaluations,
        "reads": reads,
        "before": evaluations[0] if evaluations else None,
        "after": evaluations[-1] if finished and len(evaluations) > 1 else None,
        "read": reads[-1] if finished and reads else None,
    }


def show_closing(view: ProgressView, summary: dict[str, Any], registration: str | None = None) -> None:
    """The table at the end of a run, where its files are and what to try next.

    Args:
        registration: that the run belongs to, which has a next step of its own.
    """
    directory = summary["run_dir"]
    if summary["steps"]:
        view.show(tables.steps(summary["steps"]))
    if len(summary["reads"]) > 1:
        view.show(tables.evaluations(summary["evaluations"], summary["reads"]))
    if not summary["finished"]:
        go_on = f"prereg launch {registration} --resume" if registration else f"train run.resume={directory}"
        view.say(f"continue with: vla-rl {go_on}")
        return
    if summary["read"]:
        view.show(tables.before_and_after(summary["before"], summary["after"], summary["read"]))
    view.say(f"files:    {directory}  (train.jsonl, eval.jsonl, episodes.jsonl, config.yaml, checkpoints/)")
    if registration:
        view.say(f"next:     vla-rl prereg status {registration}")
        return
    view.say(
        "try next: one that learns vla-rl train experiment=learning\n"
        "          more seeds      vla-rl train experiment=quickstart eval.seeds=300-399\n"
        "          a smaller step  vla-rl train experiment=quickstart surface=patch_only\n"
        "          the base alone  vla-rl eval eval.seeds=300-399"
    )


def _step_line(row: dict[str, Any], total: int) -> str:
    if row["successes"] is None:  # nothing was played
        nats = tables.number(row["chosen_nll"], ".3f")
        return (
            f"step {row['step']}/{total}: {row['rows']} rows of demonstrations, {nats} nats a token before the update, "
            f"read {row['rollout_s']:.0f} s, update {row['update_s']:.0f} s{tables.undone(row)}"
        )
    reward = tables.number(row["reward_mean"], "+.2f")
    return (
        f"step {row['step']}/{total}: {row['successes']}/{row['episodes']} successes, reward {reward} cm, "
        f"{row['groups_kept']}/{row['groups_total']} groups kept, "
        f"episodes {row['rollout_s']:.0f} s, update {row['update_s']:.0f} s{tables.undone(row)}"
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
