"""`vla-rl eval`: one sealed evaluation of a policy, of the same policy blind, or of the scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.startup import check_unused, new_run_dir, prepare_torch
from vla_rl.config.compose import compose
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import EvalConfig, EvalJobConfig
from vla_rl.errors import ConfigError
from vla_rl.report.progress import ProgressView
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.events import Event, OnEvent, PredictRound
from vla_rl.rollout.files import dump_json, write_atomic
from vla_rl.rollout.records import Episode
from vla_rl.seeds import check_use, parse_seeds
from vla_rl.sim.canary import require_rendering

if TYPE_CHECKING:
    from vla_rl.evals.heldout import EvalResult

EXAMPLES = (
    "vla-rl eval eval.seeds=300-319",
    "vla-rl eval policy.checkpoint=outputs/sft/run/policy eval.temperature=0.7 --json",
    "vla-rl eval eval.frames=foreign   # the same policy with another episode's pictures: its blind floor",
    "vla-rl eval policy=expert eval.seeds=300-399",
)


def run(argv: Sequence[str]) -> int:
    """Evaluate, write `eval.json` and print a table or, with --json, one object with `summary` and `episodes`."""
    options = parse("eval", argv, "Sealed evaluation on a band of seeds.", EXAMPLES)
    reader = compose("eval", options.overrides)
    job, settings = reader.section("run", EvalJobConfig), reader.section("eval", EvalConfig)
    seeds = parse_seeds(settings.seeds)
    check_use(seeds, "eval", where="eval.seeds")
    if settings.frames == "foreign" and len(seeds) < 2:
        raise ConfigError(
            "one seed has no other's pictures to look at", where="eval.frames", remedy="two seeds or more"
        )
    directory = Path(job.dir or new_run_dir("eval"))
    check_unused(directory)
    require_rendering()
    with ProgressView() as view:

        def on_event(event: Event) -> None:
            if isinstance(event, PredictRound):
                view.advance("evaluation", event.done, event.total, "episodes")

        result = _evaluate(reader, job, settings, seeds, on_event)
        episodes = [_episode(e, result.rewards[e.spec.seed]) for e in result.episodes]
        record = {"summary": result.summary, "episodes": episodes}
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / "config.json", dump_json(reader.tree, indent=1).encode())
        write_atomic(directory / "eval.json", dump_json(record, indent=1).encode())
        if options.json:
            print_json(record)
        else:
            from vla_rl.report.tables import evaluation

            subject = reader.tree["policy"].get("checkpoint", "scripted expert")
            view.show(evaluation(result.summary, f"{subject}, seeds {settings.seeds}, {settings.frames} frames"))
            view.say(f"every episode: {directory / 'eval.json'}")
    return 0


def _evaluate(
    reader: ConfigReader, job: EvalJobConfig, settings: EvalConfig, seeds: tuple[int, ...], on_event: OnEvent
) -> EvalResult:
    from vla_rl.evals.heldout import EvalResult, ForeignFrames, evaluate, summarise

    reward = documented_reward()
    if "workers" in reader.tree["policy"]:
        expert = reader.component("policy", env_spec=reader.component_spec("sim"), plugins=reader.plugins)
        reader.check_overrides_consumed()
        total = len(seeds)
        episodes = expert.run(seeds, lambda done: on_event(PredictRound(done, live=0, done=done, total=total)))
        rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in episodes}
        return EvalResult(summarise(episodes, rewards, temperature=0.0), episodes, rewards)
    device = prepare_torch(job.device, job.threads, job.seed)
    policy = reader.component("policy", device=device)
    sampler = reader.component("sampler", policy=policy, run_seed=job.seed)
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        slots, temperature = settings.slots, settings.temperature
        reader.check_consumed()
        return evaluate(
            sampler=ForeignFrames(sampler) if settings.frames == "foreign" else sampler,
            pool=pool,
            reward=reward,
            seeds=seeds,
            temperature=temperature,
            slots=slots,
            on_event=on_event,
        )


def _episode(episode: Episode, reward: float | None) -> dict[str, Any]:
    return {"seed": episode.spec.seed, "reward": reward, **episode.metrics, "replans": episode.replans}
