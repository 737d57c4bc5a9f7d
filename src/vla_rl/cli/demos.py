"""`vla-rl demos`: demonstrations of the scripted expert, or successful rollouts of a run, as a LeRobot v3 dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import FREE, compose_or_resume, open_directory
from vla_rl.cli.startup import new_run_dir
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import DemosConfig, DemosJobConfig
from vla_rl.errors import ConfigError
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.events import Event
from vla_rl.sft.recipe import DemoRecipe, ExpertJobs, expert_recipe
from vla_rl.sft.recycle import recorded_rollouts, rollout_recipe
from vla_rl.sim.canary import require_rendering

EXAMPLES = (
    "vla-rl demos demos.seeds=100000-100099 run.dir=outputs/demos/small",
    "vla-rl demos demos.workers=16 run.max_wall_s=540",
    "vla-rl demos demos.from_run=outputs/run/20260101T000000Z-ab12   # its successful rollouts, replayed",
)


def run(argv: Sequence[str]) -> int:
    """Record, or continue to record, and print what was kept."""
    options = parse("demos", argv, "Record demonstrations as a LeRobot v3 dataset.", EXAMPLES)
    reader = compose_or_resume("demos", options.overrides, (*FREE, "demos.workers"))
    job, settings = reader.section("run", DemosJobConfig), reader.section("demos", DemosConfig)
    workers, limit, place = settings.workers, job.max_wall_s, job.dir
    recipe = _recipe(reader, settings)
    require_rendering()
    directory = open_directory(reader, Path(place or new_run_dir("demos")))
    from vla_rl.sft.demos import record_demos
    from vla_rl.sft.events import EpisodesMerged, ShardRecorded

    with ProgressView() as view:

        def on_event(event: Event) -> None:
            if isinstance(event, ShardRecorded):
                view.advance("demonstrations", event.done, event.total, "shards")
            elif isinstance(event, EpisodesMerged):
                view.advance("dataset", event.done, event.total, "episodes")

        summary = record_demos(
            out_dir=directory, recipe=recipe, workers=workers, on_event=on_event, max_wall_s=options.left_s(limit)
        )
        share = f"{summary.kept} of {summary.attempts} episodes kept, {summary.rows} frames in {directory}"
        view.say(share if summary.complete else f"{share}; continue with vla-rl demos run.resume={directory}")
        view.say(f"recipe {summary.recipe_sha256}")
    if options.json:
        print_json({"directory": str(directory), "complete": summary.complete, **asdict(summary)})
    return 0


def _recipe(reader: ConfigReader, settings: DemosConfig) -> DemoRecipe:
    """What is to be recorded; refuses keys that this source of episodes does not read."""
    common = {
        "task": settings.task, "success_only": settings.success_only, "shard_episodes": settings.shard_episodes,
    }  # fmt: skip
    resumed = reader.value("run.resume")
    if settings.from_run is None:
        expert = ExpertJobs(
            seeds=settings.seeds,
            noise_share=settings.noise_share,
            miss_share=settings.miss_share,
            noise_deg=tuple(settings.noise_deg),
            start_jitter_deg=settings.start_jitter_deg,
            calibration_error_deg=tuple(map(float, settings.calibration_error_deg)),
        )
        env = reader.component_spec("sim")
        reader.check_consumed()
        return expert_recipe(env, expert, **common)
    for override in reader.overrides:
        if override.startswith("sim"):
            raise ConfigError(
                f"rollouts are replayed in the simulator of their own run, which {override} is not",
                where="command line",
                remedy=f"leave {override} away",
            )
    reader.check_overrides_consumed()
    # A run that is still under way may have stored more since this recording was started.
    only = recorded_rollouts(Path(resumed)) if resumed else None
    return rollout_recipe(settings.from_run, only=only, **common)
