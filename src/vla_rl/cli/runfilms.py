"""Films of a run's report: its base and its trained policy on the same held-out seeds, side by side.

In: a run of its own that was evaluated on those seeds, and its newest checkpoint. Out: `videos/before-after-<seed>.gif`
in the run's directory, each with its caption beside it. A run of a registration is filmed by `vla-rl prereg report`,
which knows what was opened.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_rl.cli.evalofrun import evaluation_tree
from vla_rl.cli.evaluate import perform
from vla_rl.cli.export import export_run
from vla_rl.cli.options import Options
from vla_rl.cli.prereg.filming import film_of, side_of
from vla_rl.config.reader import ConfigReader
from vla_rl.errors import UsageError
from vla_rl.files import write_atomic
from vla_rl.report.beforeafter import Side, side_by_side
from vla_rl.report.page.rundata import RunData, section
from vla_rl.report.progress import ProgressView
from vla_rl.seeds import format_seeds, parse_seeds

FOLDER = "videos"


def play(data: RunData, text: str) -> list[Path]:
    """Play, film and store.

    Args:
        text: seeds, e.g. ``300,302-304``.

    Raises:
        UsageError: a run of a registration, one without a checkpoint, or a seed that it does not evaluate on.
    """
    seeds = sorted(parse_seeds(text))
    _check(data, seeds)
    place = data.directory / FOLDER
    place.mkdir(exist_ok=True)
    made = []
    with ProgressView() as view, tempfile.TemporaryDirectory(prefix=".playing-", dir=place) as scratch:
        exported = Path(scratch) / "policy"
        step = export_run(data.directory, exported)["source"].get("step")
        base = str(section(data.config, "policy").get("checkpoint"))
        before = _sides(data, seeds, base, Path(scratch) / "before", ("before", "base, 0 updates"), view)
        after = _sides(data, seeds, str(exported), Path(scratch) / "after", ("after", f"{step} updates"), view)
        for seed in seeds:
            path = place / f"before-after-{seed}.gif"
            sides = before[seed], after[seed]
            caption = f"Seed {seed}. Before: {sides[0].outcome}. After {step} updates: {sides[1].outcome}."
            write_atomic(path.with_suffix(".txt"), f"{caption}\n".encode())
            write_atomic(path, side_by_side(*sides, seed))
            made.append(path)
    return made


def _check(data: RunData, seeds: list[int]) -> None:
    if data.registered or data.seal.why:
        id = data.registered.get("id", "ID")
        raise UsageError(
            "this run belongs to a registration, whose films show only what was opened", where="--videos",
            remedy=f"vla-rl prereg report {id} --videos {format_seeds(seeds)}, then vla-rl report {id}",
        )  # fmt: skip
    if not any((data.directory / "checkpoints").glob("step_*")):
        raise UsageError(
            "the run has no checkpoint, so there is no trained policy to play",
            where=str(data.directory / "checkpoints"), remedy="wait for its first update, or leave --videos away",
        )  # fmt: skip
    known = {seed for rows in data.held_out.values() for seed in (row["seed"] for row in rows)}
    if absent := [seed for seed in seeds if seed not in known]:
        told = format_seeds(sorted(known)) if known else "none yet"
        raise UsageError(
            f"the run has not evaluated on seed {absent[0]}", where="--videos", remedy=f"choose among: {told}"
        )


def _sides(
    data: RunData, seeds: list[int], checkpoint: str, directory: Path, titles: tuple[str, str], view: ProgressView
) -> dict[int, Side]:
    config: Mapping[str, Any] = data.config
    names = format_seeds(seeds)
    tree = evaluation_tree(config, checkpoint, names, section(config, "eval").get("temperature"), directory)
    done = perform(Options((), False, {"video": names}), view, ConfigReader(tree))
    assert done is not None  # it has no time limit
    record = done[1]
    return {row["seed"]: side_of(titles, row, film_of(directory, record, row["seed"])) for row in record["episodes"]}
