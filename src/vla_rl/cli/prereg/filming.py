"""Films of a report: base and trained policy on the same seeds, side by side.

In: a registration, seeds, a rung and an arm. Out: GIFs and what the ledger says of them. Only seeds that both policies
were evaluated on in a read that is on record are played: what is sealed stays sealed. A film shows, it proves nothing:
it is played by what is installed now, on this machine, and its caption says where it ends otherwise than what is on
record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.cli.options import Options
from vla_rl.cli.prereg.collecting import evaluation_of, unused
from vla_rl.errors import IntegrityError, LaunchRefused, UsageError
from vla_rl.evals.video import read_film
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder, Loaded, outputs_of, root_of
from vla_rl.prereg.judging import evidence_files
from vla_rl.prereg.launchgates import published_name
from vla_rl.prereg.registered import config_of, evidence_arm
from vla_rl.prereg.reported import DIRECTORY
from vla_rl.prereg.runfiles import copied
from vla_rl.prereg.sections import Measurement
from vla_rl.report.beforeafter import Side, side_by_side, thinned
from vla_rl.report.evaluation import outcome
from vla_rl.report.opened import Opened, opened
from vla_rl.report.progress import ProgressView


@dataclass(frozen=True)
class Film:
    """A GIF and what is told of it, as `reported.films` has it."""

    told: Mapping[str, Any]
    data: bytes


@dataclass(frozen=True)
class _Played:
    """An episode as it was played now: its row of the record, and its pictures."""

    row: Mapping[str, Any]
    side: Side


def film(
    folder: Folder, loaded: Loaded, seeds: Sequence[int], rung: str | None, arm: str | None, view: ProgressView
) -> list[Film]:
    """Play and film both policies on some seeds.

    Args:
        rung: None for the last one.
        arm: id or label; None for the baseline.

    Raises:
        UsageError: a seed that no read on record has opened for both policies.
        LaunchRefused: the trained policy is not on this machine.
        IntegrityError: it is not the one that was evaluated.
    """
    registration = loaded.registration
    rung_id = registration.ladder[-1].id if rung is None else registration.rung(rung).id
    chosen = registration.arm(arm)
    before, after = _evaluations(folder, loaded, seeds, rung_id, chosen.id)
    checkpoint, adapted = _trained(folder, loaded, rung_id, chosen.id)
    name = published_name(rung_id, chosen.id)
    label, step = chosen.label or chosen.id, after.step
    updates = "" if step is None else f", {step} updates"
    base = _play(folder, loaded, before, None, seeds, f"{name}-before", ("before", "base, 0 updates"), view)
    trained = _play(folder, loaded, after, checkpoint, seeds, f"{name}-after", ("after", f"{label}{updates}"), view,
                    any_digest=adapted)  # fmt: skip
    made = []
    for seed in seeds:
        sides = base[seed], trained[seed]
        recorded = [each.evidence.by_seed[seed] for each in (before, after)]
        told = {
            "file": f"{DIRECTORY}/{name}-seed{seed}.gif", "seed": seed, "rung": rung_id, "arm": chosen.id,
            "caption": _caption(seed, rung_id, label, step, sides, recorded),
        }  # fmt: skip
        made.append(Film(told, side_by_side(sides[0].side, sides[1].side, seed)))
    return made


def _evaluations(folder: Folder, loaded: Loaded, seeds: Sequence[int], rung: str, arm: str) -> tuple[Opened, Opened]:
    """Evaluations of base and trained policy, in one way and on one scene, that reads on record rest on and that hold
    all the seeds. Only the policy after the last update is kept, so an evaluation on the way there opens no film."""
    told = (*loaded.state.reads.values(), *loaded.state.gates.values())
    judged = {name for data in told for name in data["evidence"]}
    found = evidence_files(folder, loaded.entries)
    seen = [
        each
        for each in opened(loaded.registration, found)
        if each.evidence.kind == "episodes" and each.evidence.name in judged and each.measurement is not None
    ]
    ours = evidence_arm(loaded.registration.arm(arm))
    attempt = loaded.state.completed(rung, arm)
    last = None if attempt is None else (attempt.end or {}).get("step")
    after = [
        each
        for each in seen
        if not each.base and each.rung == rung and each.evidence.arm == ours and last in (None, each.step)
    ]
    pairs = [(b, a) for a in after for b in seen if b.base and _alike(b.evidence, a.evidence)]
    for b, a in pairs:
        if set(seeds) <= {*b.evidence.seeds} & {*a.evidence.seeds}:
            return b, a
    known = sorted({seed for b, a in pairs for seed in {*b.evidence.seeds} & {*a.evidence.seeds}})
    absent = [seed for seed in seeds if seed not in known] or list(seeds)
    raise UsageError(
        f"no read on record has evaluated base and trained policy of {published_name(rung, arm)} on seed {absent[0]}",
        where="--videos",
        remedy=f"choose among {_bands(known)}" if known else f"vla-rl prereg read {folder.id} READ opens one",
    )


def _alike(a: Evidence, b: Evidence) -> bool:
    return all(getattr(a, key) == getattr(b, key) for key in ("temperature", "head", "scene_hash", "protocol"))


def _bands(seeds: Sequence[int]) -> str:
    """Ascending seeds in short: ``300-319, 400``."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], seed]
        else:
            parts.append([seed])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _trained(folder: Folder, loaded: Loaded, rung: str, arm: str) -> tuple[str, bool]:
    """The trained policy as a checkpoint, and whether it came of an adapter: the published one, else one that is
    exported of the run now and that nobody records."""
    attempt, name = loaded.state.completed(rung, arm), published_name(rung, arm)
    published = loaded.state.published.get(name)
    if published is not None and (directory := root_of(folder) / published["directory"]).is_dir():
        if changed := copied(root_of(folder), published):
            raise IntegrityError(
                f"the checkpoint {name} is not the one that was published", where=f"{directory}: {changed}",
                remedy="put the published file back in its place",
            )  # fmt: skip
        return str(directory), bool(published["receipt"].get("adapter_digest"))
    run = None if attempt is None or attempt.elsewhere else root_of(folder) / attempt.data["run"]
    if run is None or not (run / "checkpoints").is_dir():
        where = root_of(folder) / published["directory"] if published else run or outputs_of(folder)
        raise LaunchRefused(
            f"the trained policy of {name} is not on this machine", where=str(where),
            remedy=f"bring outputs/prereg/{folder.id} from where it was trained: evidence alone makes no film",
        )  # fmt: skip
    from vla_rl.cli.export import export_run

    directory = unused(outputs_of(folder) / "films", f"{name}-policy")
    directory.parent.mkdir(parents=True, exist_ok=True)
    return str(directory), bool(export_run(run, directory)["source"].get("adapter_digest"))


def _play(
    folder: Folder, loaded: Loaded, each: Opened, checkpoint: str | None, seeds: Sequence[int], name: str,
    titles: tuple[str, str], view: ProgressView, *, any_digest: bool = False,
) -> dict[int, _Played]:  # fmt: skip
    """Evaluate on some seeds as was registered, film each, and read the films back."""
    from vla_rl.cli.evaluate import perform

    registration, measurement = loaded.registration, each.measurement
    assert isinstance(measurement, Measurement)
    config = config_of(registration, measurement.rung, each.arm.id if each.arm else None)
    directory = unused(outputs_of(folder) / "films", name)
    wanted = dataclasses.replace(
        measurement, seeds=_bands(sorted(seeds)).replace(" ", ""), temperature=each.evidence.temperature
    )
    reader = evaluation_of(registration, config, wanted, checkpoint or config["policy"]["checkpoint"], directory)
    done = perform(Options((), False, {"video": wanted.seeds}), view, reader)
    assert done is not None  # it has no time limit
    record = done[1]
    if not any_digest and each.evidence.policy_digest not in (None, record["policy"]["digest"]):
        raise IntegrityError(
            f"this is not the policy that was evaluated: digest {record['policy']['digest'][:12]}, on record is "
            f"{str(each.evidence.policy_digest)[:12]}",
            where=f"evidence {each.evidence.name}: policy_digest", remedy="put its checkpoint back in its place",
        )  # fmt: skip
    return {row["seed"]: _Played(row, side_of(titles, row, film_of(directory, record, row["seed"])))
            for row in record["episodes"]}  # fmt: skip


def film_of(directory: Path, record: Mapping[str, Any], seed: int) -> Path:
    """The file of an evaluation's film of a seed."""
    from vla_rl.rollout.records import EpisodeSpec

    stem = EpisodeSpec(seed).episode_id
    return next(directory / name for name in record["files"]["videos"] if Path(name).stem == stem)


def side_of(titles: tuple[str, str], row: Mapping[str, Any], film: Path) -> Side:
    """An episode with its film, under what to write above it (before or after, and which policy)."""
    pictures = thinned(read_film(film))
    return Side(*titles, _words(row, pictures[-1][0]), bool(row["success"]), pictures)


def _words(row: Mapping[str, Any], lasted_s: float | None = None) -> str:
    """How an episode came out; when, if it is known how long it lasted."""
    if row["success"]:
        tick = row.get("strict_tick") if row.get("success_strict") else row.get("success_tick")
        return "success" if None in (tick, lasted_s) else f"success after {tick / row['ticks'] * lasted_s:.1f} s"
    stage = outcome(row)
    reached = {"-": "never touched", "one tick": "only the documented test"}.get(stage, stage)
    tipped = ", boat tipped" if row.get("tipped") else ""
    return f"no success: {reached}{tipped}"


def _caption(
    seed: int, rung: str, label: str, step: int | None, sides: Sequence[_Played], recorded: Sequence[Mapping[str, Any]]
) -> str:
    """Seed, steps, outcomes, and where they differ from what is on record."""
    told = f"Seed {seed}. Before (base, 0 updates): {sides[0].side.outcome}. "
    told += f"After ({label} of {rung}{'' if step is None else f', {step} updates'}): {sides[1].side.outcome}."
    for name, played, known in zip(("before", "after"), sides, recorded, strict=True):
        if bool(played.row["success"]) != bool(known.get("success")):
            told += f" On record, {name}: {_words(known)}; it was filmed on another machine or by other software."
    return told
