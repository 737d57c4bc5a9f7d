"""`vla-rl eval`: one sealed evaluation of a policy, of the same policy blind, or of the scripted expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.startup import check_unused, new_run_dir, prepare_torch
from vla_rl.config.compose import compose
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import EvalConfig, EvalJobConfig
from vla_rl.errors import ConfigError, UsageError
from vla_rl.report.progress import ProgressView
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.events import Event, OnEvent, PredictRound
from vla_rl.rollout.files import append_jsonl, dump_json, write_atomic
from vla_rl.rollout.records import Episode
from vla_rl.seeds import check_use, parse_seeds
from vla_rl.sim.canary import require_rendering
from vla_rl.sim.stillness import is_frozen

if TYPE_CHECKING:
    from vla_rl.evals.film import Replayed
    from vla_rl.evals.heldout import EvalResult
    from vla_rl.evals.looks import Looks, Recording

EXAMPLES = (
    "vla-rl eval eval.seeds=300-319",
    "vla-rl eval policy.checkpoint=outputs/sft/run/policy eval.temperature=0.7 --json",
    "vla-rl eval eval.frames=foreign   # the same policy with another episode's pictures: its blind floor",
    "vla-rl eval policy=expert eval.seeds=300-399 --video 300,317",
)
FLAGS = {"video": ("SEEDS", "seeds to film, e.g. 300,305-307, or none (default: the first seed)")}
RECORD, TRACES, SHEET, VIDEOS = "eval.json", "traces.jsonl", "contact_sheet.png", "videos"


@dataclass(frozen=True)
class Played:
    """A finished evaluation: its result, three looks by seed, and what it takes to run some of it again."""

    result: EvalResult
    looks: dict[int, Looks]
    recordings: tuple[Recording, ...]


@dataclass(frozen=True)
class Plan:
    """What was asked for: seeds in order, those to film, whether that was asked for by name, and traces."""

    seeds: tuple[int, ...]
    film: tuple[int, ...]
    film_named: bool
    traces: bool

    @property
    def recorded(self) -> tuple[int, ...]:
        return self.seeds if self.traces else self.film


def run(argv: Sequence[str]) -> int:
    """Evaluate, write the record, films and the contact sheet, and print tables or, with --json, the record."""
    options = parse("eval", argv, "Sealed evaluation on a band of seeds.", EXAMPLES, FLAGS)
    reader = compose("eval", options.overrides)
    job, settings = reader.section("run", EvalJobConfig), reader.section("eval", EvalConfig)
    plan = _plan(settings, options.flags["video"])
    directory = Path(job.dir or new_run_dir("eval"))
    check_unused(directory)
    require_rendering()
    with ProgressView() as view:

        def on_event(event: Event) -> None:
            if isinstance(event, PredictRound):
                view.advance("evaluation", event.done, event.total, "episodes")

        played = _play(reader, job, settings, plan, on_event)
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / "config.json", dump_json(reader.tree, indent=1).encode())
        record = _record(played.result)
        _write(directory, record)  # before anything that comes after can fail
        title = f"{reader.tree['policy'].get('checkpoint', 'scripted expert')}, {settings.frames} frames"
        _draw_sheet(directory, record, played, f"{title}, seeds {settings.seeds}")
        _replay(directory, record, played, plan, reader, view)
        _write(directory, record)
        if options.json:
            print_json(record)
        else:
            _show(view, directory, record, title)
    return 0


def _plan(settings: EvalConfig, video: str | None) -> Plan:
    """Read and check what is asked for, before anything is loaded."""
    seeds = parse_seeds(settings.seeds)
    check_use(seeds, "eval", where="eval.seeds")
    if settings.frames == "foreign" and len(seeds) < 2:
        raise ConfigError(
            "one seed has no other's pictures to look at", where="eval.frames", remedy="two seeds or more"
        )
    film = seeds[:1] if video is None else () if video == "none" else parse_seeds(video)
    absent = [seed for seed in film if seed not in seeds]
    if absent:
        raise ConfigError(
            f"seed {absent[0]} is not evaluated", where="--video", remedy=f"choose among {settings.seeds}, or none"
        )
    return Plan(seeds, film, film_named=video is not None, traces=settings.traces)


def _play(reader: ConfigReader, job: EvalJobConfig, settings: EvalConfig, plan: Plan, on_event: OnEvent) -> Played:
    if "workers" in reader.tree["policy"]:
        return _play_expert(reader, plan, on_event)
    from vla_rl.evals.blind import view
    from vla_rl.evals.heldout import evaluate
    from vla_rl.evals.looks import EpisodeWatcher
    from vla_rl.evals.scene import scene_facts

    device = prepare_torch(job.device, job.threads, job.seed)
    policy = reader.component("policy", device=device)
    sampler = reader.component("sampler", policy=policy, run_seed=job.seed)
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        slots, temperature = settings.slots, settings.temperature
        reader.check_consumed()
        watcher = EpisodeWatcher(plan.recorded)
        result = evaluate(
            sampler=view(settings.frames, sampler),
            pool=pool,
            reward=documented_reward(),
            seeds=plan.seeds,
            temperature=temperature,
            slots=slots,
            scene=scene_facts(policy, pool),
            on_event=on_event,
            watcher=watcher,
        )
    metrics = {episode.spec.seed: episode.metrics for episode in result.episodes}
    return Played(result, watcher.looks, tuple(watcher.recording(seed, metrics[seed]) for seed in plan.recorded))


def _play_expert(reader: ConfigReader, plan: Plan, on_event: OnEvent) -> Played:
    from vla_rl.evals.heldout import EvalResult
    from vla_rl.evals.summary import summarise

    expert = reader.component("policy", env_spec=reader.component_spec("sim"), plugins=reader.plugins)
    reader.check_overrides_consumed()
    total = len(plan.seeds)
    plays = expert.run(plan.seeds, lambda done: on_event(PredictRound(done, live=0, done=done, total=total)))
    episodes, reward = tuple(play.episode for play in plays), documented_reward()
    rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in episodes}
    summary = summarise(episodes, rewards, temperature=0.0, scene=plays[0].scene)
    looks = {play.recording.seed: play.looks for play in plays}
    recordings = {play.recording.seed: play.recording for play in plays}
    return Played(EvalResult(summary, episodes, rewards), looks, tuple(recordings[seed] for seed in plan.recorded))


def _record(result: EvalResult) -> dict[str, Any]:
    """What `eval.json` holds and --json prints."""
    episodes = [_episode(episode, result.rewards[episode.spec.seed]) for episode in result.episodes]
    summary = {**result.summary, "filmed": 0, "frozen": None}
    return {"summary": summary, "episodes": episodes, "files": {"record": RECORD, "videos": []}}


def _episode(episode: Episode, reward: float | None) -> dict[str, Any]:
    own = {"seed": episode.spec.seed, "draw": episode.spec.draw, "reward": reward}
    return {**own, **episode.metrics, "replans": episode.replans, "picture_motion": None, "frozen": None}


def _write(directory: Path, record: dict[str, Any]) -> None:
    write_atomic(directory / RECORD, dump_json(record, indent=1).encode())


def _draw_sheet(directory: Path, record: dict[str, Any], played: Played, title: str) -> None:
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


def _replay(
    directory: Path, record: dict[str, Any], played: Played, plan: Plan, reader: ConfigReader, view: ProgressView
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
            film=plan.film,
            directory=directory / VIDEOS,
            on_done=lambda done: view.advance("replay", done, len(played.recordings), "episodes"),
        )
    except UsageError as error:
        if plan.film_named or plan.traces:
            raise
        view.say(f"no video: {error.what}")
        return
    if plan.film and not has_video_codec():
        view.say("the package `av` is missing, so videos are animated WebP at half the rate: pip install av for MP4")
    _add_replayed(record, replayed)
    if plan.traces:
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


def _show(view: ProgressView, directory: Path, record: dict[str, Any], title: str) -> None:
    from vla_rl.report.evaluation import evaluation

    view.show(evaluation(record["summary"], record["episodes"], title, view.console.width))
    view.say(f"files in {directory}: {', '.join(_file_names(record['files']))}")


def _file_names(files: Mapping[str, str | list[str]]) -> list[str]:
    """The names under `files` of a record, flat."""
    return [name for value in files.values() for name in ([value] if isinstance(value, str) else value)]
