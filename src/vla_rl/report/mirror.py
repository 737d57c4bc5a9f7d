"""Mirrors of a run's rows in an experiment tracker.

In: rows as they are appended to train.jsonl and eval.jsonl. Out: the same numbers in the tracker. The run directory is
the record; a mirror never decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast


class Mirror(Protocol):
    """What a run needs of a tracker."""

    def start(self, name: str, directory: str, config: Mapping[str, Any]) -> None: ...

    def log(self, kind: str, row: Mapping[str, Any]) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class NoMirror:
    """No tracker."""

    def start(self, name: str, directory: str, config: Mapping[str, Any]) -> None: ...

    def log(self, kind: str, row: Mapping[str, Any]) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class WandbMirror:
    """Weights & Biases, offline by default.

    Args:
        project: W&B project.
        mode: ``online``, ``offline`` or ``disabled``.
    """

    def __init__(self, *, project: str, mode: str) -> None:
        self._project, self._mode, self._run = project, mode, None

    def start(self, name: str, directory: str, config: Mapping[str, Any]) -> None:
        """Open a W&B run whose files lie in the run directory."""
        import wandb

        self._run = wandb.init(
            project=self._project,
            mode=cast(Any, self._mode),
            name=name,
            dir=directory,
            config=dict(config),
            reinit="create_new",
        )

    def log(self, kind: str, row: Mapping[str, Any]) -> None:
        """Log the row's numbers under ``<kind>/<key>`` at its step."""
        assert self._run is not None, "start() comes first"
        numbers = {f"{kind}/{k}": v for k, v in row.items() if isinstance(v, int | float) and v is not None}
        self._run.log({**numbers, "step": row["step"]})

    def finish(self, exit_code: int) -> None:
        """Close the W&B run with the exit code, so that a failed run is not shown as finished."""
        if self._run is not None:
            self._run.finish(exit_code=exit_code)
