"""`vla-rl demos`: the scripted expert's demonstrations as a dataset directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import compose_or_resume, open_directory
from vla_rl.cli.startup import new_run_dir
from vla_rl.config.schema import DemosConfig, DemosJobConfig
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.events import Event
from vla_rl.seeds import check_use, parse_seeds
from vla_rl.sim.canary import require_rendering

EXAMPLES = (
    "vla-rl demos demos.seeds=100000-100099 run.dir=outputs/demos/small",
    "vla-rl demos demos.workers=16 run.max_wall_s=540",
)


def run(argv: Sequence[str]) -> int:
    """Record, or continue to record, and print what was kept."""
    options = parse("demos", argv, "Record demonstrations of the scripted expert.", EXAMPLES)
    reader = compose_or_resume("demos", options.overrides, ("run.max_wall_s", "demos.workers"))
    job, settings = reader.section("run", DemosJobConfig), reader.section("demos", DemosConfig)
    env_spec, seeds = reader.component_spec("sim"), parse_seeds(settings.seeds)
    check_use(seeds, "demos", where="demos.seeds")
    require_rendering()
    directory = open_directory(reader, Path(job.dir or new_run_dir("demos")))
    from vla_rl.sft.demos import record_demos
    from vla_rl.sft.events import ShardRecorded

    with ProgressView() as view:

        def on_event(event: Event) -> None:
            if isinstance(event, ShardRecorded):
                view.advance("demonstrations", event.done, event.total, "shards")

        recipe = {f.name: getattr(settings, f.name) for f in fields(DemosConfig) if f.name != "seeds"}
        limit = job.max_wall_s
        reader.check_consumed()
        summary = record_demos(
            out_dir=directory, env_spec=env_spec, seeds=seeds, on_event=on_event, max_wall_s=limit, **recipe
        )
        share = f"{summary.kept} of {summary.attempts} episodes kept, {summary.rows} rows in {directory}"
        view.say(share if summary.complete else f"{share}; continue with vla-rl demos run.resume={directory}")
    if options.json:
        print_json({"directory": str(directory), "complete": summary.complete, **asdict(summary)})
    return 0
