"""`vla-rl eval`: one sealed evaluation of a policy, of the same policy blind, or of the scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.cli.evaluation_files import (
    RECORD,
    Played,
    Wanted,
    draw_sheet,
    file_names,
    film_and_trace,
    record_of,
    write_record,
)
from vla_rl.cli.options import Options, parse, print_json
from vla_rl.cli.resume import compose_or_resume, open_directory
from vla_rl.cli.sampling import sampler_of
from vla_rl.cli.sealed import FREE_AT_RESUME, choose_directory, conditions, say_stopped, without_leftovers
from vla_rl.cli.startup import prepare_torch
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import EvalConfig, EvalJobConfig
from vla_rl.errors import EXIT_OK, ConfigError
from vla_rl.evals import blind
from vla_rl.evals.kept import FOLDER, Deadline, Kept, KeptEpisodes, OutOfTime, count_kept, discard_kept
from vla_rl.policy.heads import AR, FLOW, check_flow_temperature
from vla_rl.report.progress import ProgressView
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.events import Event, OnEvent, PredictRound
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.seeds import check_use, parse_seeds
from vla_rl.sim.canary import require_rendering

EXAMPLES = (
    "vla-rl eval eval.seeds=300-319",
    "vla-rl eval policy.checkpoint=outputs/sft/run/policy eval.temperature=0.7 --json",
    "vla-rl eval eval.frames=foreign   # the same policy with another episode's pictures: its blind floor",
    "vla-rl eval policy=molmoact2 policy.checkpoint=DIR policy.serve_head=flow   # its action expert, no tokens",
    "vla-rl eval policy=lerobot policy.checkpoint=DIR   # an ACT or SmolVLA of LeRobot's (docs/lerobot.md)",
    "vla-rl eval policy=expert eval.seeds=300-399 --video 300,317",
    "vla-rl eval run.max_wall_s=540 run.dir=outputs/long && vla-rl eval run.resume=outputs/long",
)
FLAGS = {"video": ("SEEDS", "seeds to film, e.g. 300,305-307, or none (default: the first seed)")}


@dataclass(frozen=True)
class Plan:
    """What was asked for: seeds in order, and what is to be made of them besides the record."""

    seeds: tuple[int, ...]
    wanted: Wanted

    @property
    def recorded(self) -> tuple[int, ...]:
        """Seeds that are run again."""
        return self.seeds if self.wanted.traces else self.wanted.film


def run(argv: Sequence[str]) -> int:
    """Evaluate, write the record, films and the contact sheet, and print tables or, with --json, the record."""
    options = parse("eval", argv, "Sealed evaluation on a band of seeds.", EXAMPLES, FLAGS)
    with ProgressView() as view:
        if (done := perform(options, view)) is None:
            return EXIT_OK
        directory, record, title = done
        if options.json:
            print_json(record)
        else:
            _show(view, directory, record, title)
    return EXIT_OK


def perform(
    options: Options, view: ProgressView, reader: ConfigReader | None = None
) -> tuple[Path, dict[str, Any], str] | None:
    """Evaluate and write all files; the directory, the record and what to call it, or None if time ran out.

    Args:
        reader: the configuration, where it is not the command line's.
    """
    reader = reader or compose_or_resume("eval", options.overrides, FREE_AT_RESUME)
    job, settings = reader.section("run", EvalJobConfig), reader.section("eval", EvalConfig)
    deadline = Deadline(options.left_s(job.max_wall_s))
    check_flow_temperature(reader.tree["policy"].get("serve_head"), settings.temperature)
    plan = _plan(job, settings, options.flags["video"])
    directory = choose_directory("eval", job, RECORD)
    require_rendering()
    before = count_kept(directory)

    def on_event(event: Event) -> None:
        if isinstance(event, PredictRound):
            view.advance("evaluation", event.done, event.total, "episodes")

    try:
        with without_leftovers(directory):
            played = _play(reader, job, settings, plan, directory, deadline, on_event)
    except OutOfTime:
        say_stopped(view, "eval", directory, before=before, total=len(plan.seeds), as_json=options.json)
        return None
    name, head = reader.tree["policy"].get("checkpoint", "scripted expert"), reader.tree["policy"].get("serve_head")
    record = record_of(played, {"name": name, "head": head, "frames": settings.frames, "run_seed": job.seed})
    write_record(directory, record)  # before anything that comes after can fail
    title = f"{name}, {settings.frames} frames"
    draw_sheet(directory, record, played, f"{title}, seeds {settings.seeds}")
    film_and_trace(directory, record, played, plan.wanted, reader, view)
    write_record(directory, record)
    discard_kept(directory)
    return directory, record, title


def _plan(job: EvalJobConfig, settings: EvalConfig, video: str | None) -> Plan:
    """Read and check what is asked for, before anything is loaded."""
    seeds = parse_seeds(settings.seeds)
    check_use(seeds, "eval", where="eval.seeds")
    if settings.frames == "foreign" and len(seeds) < 2:
        raise ConfigError(
            "one seed has no other's pictures to look at", where="eval.frames", remedy="two seeds or more"
        )
    if settings.frames in blind.BORROWING and (job.resume or job.max_wall_s is not None):
        raise ConfigError(
            f"with {settings.frames} frames an episode depends on others; a stopped evaluation could not go on alike",
            where="eval.frames, run.max_wall_s, run.resume",
            remedy="evaluate them in one launch without a limit, on fewer seeds if need be",
        )
    film = seeds[:1] if video is None else () if video == "none" else parse_seeds(video)
    absent = [seed for seed in film if seed not in seeds]
    if absent:
        raise ConfigError(
            f"seed {absent[0]} is not evaluated", where="--video", remedy=f"choose among {settings.seeds}, or none"
        )
    return Plan(seeds, Wanted(film, film_named=video is not None, traces=settings.traces))


def _play(
    reader: ConfigReader,
    job: EvalJobConfig,
    settings: EvalConfig,
    plan: Plan,
    directory: Path,
    deadline: Deadline,
    on_event: OnEvent,
) -> Played:
    if "workers" in reader.tree["policy"]:
        if settings.frames != "own":
            raise ConfigError(
                "the scripted expert looks at no pictures", where="eval.frames", remedy="leave eval.frames away"
            )
        return _play_expert(reader, plan, directory, deadline, on_event)
    from vla_rl.evals.heldout import evaluate
    from vla_rl.evals.looks import EpisodeWatcher
    from vla_rl.evals.scene import scene_facts

    device = prepare_torch(job.device, job.threads, job.seed)
    policy = reader.component("policy", device=device, env_spec=reader.component_spec("sim"))
    sampler = sampler_of(reader, policy, getattr(policy, "head", None), job.seed)
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        slots, temperature, scene = settings.slots, settings.temperature, scene_facts(policy, pool)
        reader.check_consumed()
        made_under = conditions(policy, scene)
        kept = KeptEpisodes(open_directory(reader, directory) / FOLDER, made_under)
        watcher = EpisodeWatcher(plan.seeds)

        def keep(episode: Episode) -> None:
            seed = episode.spec.seed
            chunks_deg = watcher.recording(seed, episode.metrics).chunks_deg
            kept.keep(Kept(episode, made_under, watcher.looks[seed], chunks_deg))

        deadline.check()
        result = evaluate(
            sampler=blind.view(settings.frames, sampler),
            pool=pool,
            reward=documented_reward(),
            seeds=plan.seeds,
            temperature=temperature,
            slots=slots,
            scene=scene,
            on_event=deadline.watching(on_event),
            watcher=watcher,
            finished=kept.episodes,
            on_episode=keep,
        )
    told: dict[str, Any] = {"digest": made_under["policy_digest"], **getattr(policy, "told", {})}
    if getattr(policy, "head", None) == FLOW:
        told["token_digest"] = policy.digest(AR)  # by which runs, which train the token head, know it
    if getattr(policy, "stale", False):
        told["stale"] = True
    if (sampled_in := reader.tree["sampler"].get("dtype")) is not None:
        told["sampled_in"] = sampled_in
    return Played.of(result, kept, plan.recorded, told)


def _play_expert(reader: ConfigReader, plan: Plan, directory: Path, deadline: Deadline, on_event: OnEvent) -> Played:
    from vla_rl.evals.expert import ExpertPlay
    from vla_rl.evals.heldout import EvalResult
    from vla_rl.evals.summary import summarise

    expert = reader.component("policy", env_spec=reader.component_spec("sim"), plugins=reader.plugins)
    reader.check_overrides_consumed()
    kept = KeptEpisodes(open_directory(reader, directory) / FOLDER, None)
    specs = [EpisodeSpec(seed) for seed in plan.seeds]
    on_event = deadline.watching(on_event)

    def keep(play: ExpertPlay) -> None:
        kept.keep(Kept(play.episode, play.scene, play.looks, play.recording.chunks_deg))
        done = len(kept.by_spec)
        on_event(PredictRound(done, live=0, done=done, total=len(specs)))

    deadline.check()
    expert.run([spec.seed for spec in specs if spec not in kept.by_spec], keep)
    kept.check_alike()
    episodes, reward = tuple(kept.by_spec[spec].episode for spec in specs), documented_reward()
    rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in episodes}
    scene: Any = kept.by_spec[specs[0]].made_under
    summary = summarise(episodes, rewards, temperature=0.0, scene=scene)
    return Played.of(EvalResult(summary, episodes, rewards), kept, plan.recorded, {"digest": None})


def _show(view: ProgressView, directory: Path, record: dict[str, Any], title: str) -> None:
    from vla_rl.report.evaluation import evaluation

    view.show(evaluation(record["summary"], record["episodes"], title, view.console.width))
    view.say(f"files in {directory}: {', '.join(file_names(record['files']))}")
