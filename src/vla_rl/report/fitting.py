"""What supervised training shows: progress from its events, and the learning curve from its files.

In: events, and a run directory. Out: lines and bars on the terminal, and a table with a row an evaluation. Figures are
left to whoever reads `sft.jsonl` and `eval.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from vla_rl.policy.heads import NAMES
from vla_rl.report.progress import ProgressView, mishap
from vla_rl.report.tables import number
from vla_rl.rollout.events import EpisodeRestarted, Event, PredictRound, WorkerReplaced
from vla_rl.rollout.jsonl import read_jsonl
from vla_rl.sft.events import PolicySaved, SftEvaluated, SftLogged, SftStopped

UNIT = "evaluation"
TOKENS = (("loss", "loss", ".3f"), ("token accuracy", "accuracy", ".3f"))  # heading, key, format
FLOW = (("flow loss", "flow_loss", ".4f"),)
BOTH = (("token loss", "token_loss", ".3f"), *FLOW)
OUTCOMES = ("success", "95 % interval", "touched", "pinched", "reward, cm")


class FittingView:
    """Turns the events of a training into progress.

    Args:
        view: where to show them.
    """

    def __init__(self, view: ProgressView) -> None:
        self._view, self.say = view, view.say

    def decoding(self, done: int, total: int) -> None:
        """`done` of `total` windows have their pictures."""
        self._view.advance("decoding", done, total, "windows")

    def on_event(self, event: Event) -> None:
        """Handle one event; unknown ones are ignored."""
        match event:
            case SftLogged():
                self._view.advance("fine-tuning", event.step, event.steps, "steps")
                both = event.token_loss is not None and event.flow_loss is not None
                terms = f" (tokens {event.token_loss:.3f}, flow {event.flow_loss:.4f})" if both else ""
                self.say(f"step {event.step}: loss {event.loss:.3f}{terms}, {event.rows_per_s:.0f} rows/s")
            case PredictRound():
                self._view.advance(UNIT, event.done, event.total, "episodes")
            case SftEvaluated():
                self.say(f"step {event.step}: {event.row['successes']}/{event.row['trials']} successes")
            case PolicySaved():
                self.say(f"step {event.step}: policy in {event.path}")
            case SftStopped():
                self.say(f"stopped at step {event.step}; continue with vla-rl sft run.resume={event.run_dir}")
            case EpisodeRestarted() | WorkerReplaced():
                self.say(mishap(event))


def curve(directory: Path) -> Table | None:
    """The learning curve: each evaluation beside the last loss logged before it; None without evaluations."""
    evaluations, log = read_jsonl(directory / "eval.jsonl"), read_jsonl(directory / "sft.jsonl")
    if not evaluations:
        return None
    first = evaluations[0]
    head = f"{NAMES[first['head']]}, " if "head" in first else ""
    title = f"Learning curve, {head}temperature {first['temperature']:g}, {first['trials']} seeds"
    table = Table(title=title, title_justify="left")
    has_flow, has_tokens = (any(entry.get(key) is not None for entry in log) for key in ("flow_loss", "accuracy"))
    terms = TOKENS if not has_flow else BOTH if has_tokens else FLOW
    for heading in ("step", *(heading for heading, _, _ in terms), *OUTCOMES):
        table.add_column(heading, justify="right")
    for row in evaluations:
        logged = next((entry for entry in reversed(log) if entry["step"] <= row["step"]), {})
        table.add_row(
            str(row["step"]),
            *(number(logged.get(key), form) for _, key, form in terms),
            f"{row['successes']}/{row['trials']}",
            f"[{row['success_low']:.2f}, {row['success_high']:.2f}]",
            str(row["touched"]),
            str(row["pinched"]),
            number(row["reward_mean"], "+.2f"),
        )
    return table
