"""Progress while a command works: bars on a terminal, plain lines elsewhere. Outcomes of sealed reads are never shown.

In: events of rollout, rl and sft. Out: text on stderr. `NO_COLOR` is respected by rich; a pipe or a log file gets lines
without control characters.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vla_rl.rollout.events import EpisodeRestarted, WorkerReplaced

LINE_EVERY_S = 10.0  # between plain lines of one phase; a log file should stay readable


class ProgressView:
    """Shows one phase at a time, e.g. ``step 2: rollout`` with 12 of 32 episodes.

    Args:
        console: where to write; default stderr, so that stdout stays clean for --json.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._phase: str | None = None
        self._task = self._bars.add_task("", total=None, visible=False)
        self._last_line_s, self._shown = 0.0, -1

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def advance(self, phase: str, done: int, total: int, unit: str) -> None:
        """`done` of `total` units of `phase`; a new phase replaces the last one's bar."""
        if phase != self._phase:
            self._phase, self._shown = phase, -1
            self._bars.reset(self._task, description=phase, total=total, completed=done, visible=True)
            self._last_line_s = 0.0
        self._bars.update(self._task, completed=done, total=total)
        now = time.monotonic()
        due = done == total or now - self._last_line_s > LINE_EVERY_S
        if not self.console.is_terminal and due and done != self._shown:
            self._last_line_s, self._shown = now, done
            self.say(f"{phase}: {done}/{total} {unit}")

    def show(self, renderable: RenderableType) -> None:
        """A table or other rich object that stays."""
        self.console.print(renderable)

    def say(self, line: str) -> None:
        """One line that stays."""
        self.console.print(line, highlight=False, soft_wrap=True)


def mishap(event: EpisodeRestarted | WorkerReplaced) -> str:
    """What is said of a worker that was lost, and of an episode that is redone because of it."""
    if isinstance(event, EpisodeRestarted):
        return f"episode {event.episode_id} is redone ({event.faults} faults of its own): {event.reason}"
    return f"{event.worker} was replaced: {event.reason}"
