"""The files of one evaluation: its record, contact sheet, films and traces.

In: a finished evaluation. Out: the files, and the record as a dict. The record is written before anything is drawn or
filmed, so that no codec and no full disk can cost a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.config.reader import ConfigReader
from vla_rl.errors import UsageError
from vla_rl.files import write_atomic
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.jsonl import append_jsonl, dump_json
from vla_rl.rollout.records import Episode, facts
from vla_rl.sim.stillness import is_frozen

if TYPE_CHECKING:
    from vla_rl.evals.film import Replayed
    from vla_rl.evals.heldout import EvalResult
    from vla_rl.evals.kept import KeptEpisodes
    from vla_rl.evals.looks import Looks, Recording

RECORD, TRACES, SHEET, VIDEOS = "eval.json", "traces.jsonl", "contact_sheet.png", "videos"


@dataclass(frozen=True)
class Played:
    """A finished evaluation: its result, what the policy itself tells of it (digests, a stale head), three looks by
    seed, and what it takes to run some of it again."""

    result: EvalResult
    told: dict[str, Any]
    looks: dict[int, Looks]
    recordings: tuple[Recording, ...]

    @classmethod
    def of(cls, result: EvalResult, kept: KeptEpisodes, recorded: Sequence[int], told: Mapping[str, Any]) -> Played:
        """From what was kept of its episodes; `recorded` are the seeds that will be run again."""
        by_seed = {spec.seed: each for spec, each in kept.by_spec.items()}
        looks = {seed: each.looks for seed, each in by_seed.items() if each.looks is not None}
        return cls(result, dict(told), looks, tuple(by_seed[seed].recording for seed in recorded))


@dataclass(frozen=True)
class Wanted:
    """What is to be made besides the record: seeds to film, whether they were asked for by name, and traces."""

    film: tuple[int, ...]
    film_named: bool
    traces: bool


def record_of(played: Played, policy: Mapping[str, Any]) -> dict[str, Any]:
    """What `eval.json` holds and --json prints.

    Args:
        policy: which policy it was, see docs/metrics.md; what it told of itself is added.
    """
    result = played.result
    episodes = [_episode(episode, result.rewards[episode.spec.seed]) for episode in result.episodes]
    return {
        "policy": {**policy, **played.told},
        "summary": {**result.summary, "filmed": 0, "frozen": None},
        "episodes": episodes,
        "files": {"record": RECORD, "videos": []},
    }


def _episode(episode: Episode, reward: float | None) -> dict[str, Any]:
    own = {"seed": episode.spec.seed, "draw": episode.spec.draw, "reward": reward}
    return {**own, **facts(episode), "picture_motion": None, "frozen": None}


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Write `eval.json`."""
    write_atomic(directory / RECORD, dump_json(record, indent=1).encode())


def draw_sheet(directory: Path, record: dict[str, Any], played: Played, title: str) -> None:
    """Draw the contact sheet and name it in the record."""
    from vla_rl.report.evaluation import flags, outcome
    from vla_rl.report.sheet import Strip, save_sheet

    strips = [
        Strip(
            (looks.start, looks.middle, looks.end),
            f"{row['seed']}  {outcome(row)}, {row.get('ticks', '?')} ticks {flags(row)}",
            bool(row["success"]),
        )
        for row in record["episodes"]
        if (looks := played.looks.get(row["seed"]))
    ]
    if strips:
        save_sheet(directory / SHEET, strips, title)
        record["files"]["contact_sheet"] = SHEET


def film_and_trace(
    directory: Path, record: dict[str, Any], played: Played, wanted: Wanted, reader: ConfigReader, view: ProgressView
) -> None:
    """Film and trace what was asked for, and add what that shows to the record."""
    from vla_rl.evals.film import replay_all
    from vla_rl.evals.video import has_video_codec

    try:
        replayed = replay_all(
            played.recordings,
            env_spec=reader.component_spec("sim"),
            plugins=reader.plugins,
            workers=_workers(reader),
            film=wanted.film,
            directory=directory / VIDEOS,
            on_done=lambda done: view.advance("replay", done, len(played.recordings), "episodes"),
        )
    except UsageError as error:
        if wanted.film_named or wanted.traces:
            raise
        view.say(f"no video: {error.what}")
        return
    if wanted.film and not has_video_codec():
        view.say("the package `av` is missing, so videos are animated WebP at half the rate: pip install av for MP4")
    _add_replayed(record, replayed)
    if wanted.traces:
        (directory / TRACES).unlink(missing_ok=True)  # of a launch that was killed while it wrote them
        append_jsonl(directory / TRACES, ({"seed": r.seed, "draw": 0, **r.trace} for r in replayed))
        record["files"]["traces"] = TRACES


def _add_replayed(record: dict[str, Any], replayed: Sequence[Replayed]) -> None:
    films = {r.seed: r for r in replayed if r.film}
    for row in record["episodes"]:
        if row["seed"] in films:
            motion = films[row["seed"]].motion
            row |= {"picture_motion": motion, "frozen": is_frozen(motion)}
    frozen = [is_frozen(r.motion) for r in films.values()]
    record["summary"] |= {"filmed": len(films), "frozen": sum(map(bool, frozen)) if films else None}
    record["files"]["videos"] = [f"{VIDEOS}/{r.film.name}" for r in films.values() if r.film]


def _workers(reader: ConfigReader) -> int:
    """Processes that replay: as many as played, one for the serial pool."""
    return int(reader.tree["policy"].get("workers") or reader.tree["pool"].get("workers") or 1)


def file_names(files: Mapping[str, str | list[str]]) -> list[str]:
    """The names under `files` of a record, flat."""
    return [name for value in files.values() for name in ([value] if isinstance(value, str) else value)]
