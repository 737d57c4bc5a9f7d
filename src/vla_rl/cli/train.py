"""`vla-rl train`: the single trainer entrypoint. Composes, wires, runs, and shows what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.distributed import check_distributed, help_out, is_helper, processes, refuse_torchrun, shared
from vla_rl.cli.experience import check_experience, demonstrated
from vla_rl.cli.heldout import check_plain
from vla_rl.cli.options import Options, parse, print_json
from vla_rl.cli.resume import FREE_OF_TRAINING, compose_or_resume
from vla_rl.cli.serving import serving_parity
from vla_rl.cli.startup import check_unused, new_run_dir, prepare_torch
from vla_rl.cli.watching import watched
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schedule import evaluation_steps
from vla_rl.config.schema import (
    BudgetConfig,
    CheckpointConfig,
    DistributedConfig,
    ExperienceConfig,
    GatesConfig,
    GeometryConfig,
    LossConfig,
    MonitorConfig,
    OptimConfig,
    RunConfig,
    TripwiresConfig,
)
from vla_rl.errors import EXIT_OK, VlaRlError
from vla_rl.evals.parity import Bounds
from vla_rl.policy.heads import check_token_head
from vla_rl.prereg.identity import identity
from vla_rl.report.progress import ProgressView
from vla_rl.report.training import TrainingView, closing, show_closing
from vla_rl.rl.plan import Geometry, Outcome
from vla_rl.seeds import check_disjoint, check_use, parse_seeds
from vla_rl.sim.canary import require_rendering

if TYPE_CHECKING:
    from vla_rl.rl.rundir import RunDir

EXAMPLES = (
    "vla-rl train experiment=quickstart",
    "vla-rl train experiment=quickstart run.steps=30 eval.seeds=300-399",
    "vla-rl train experiment=quickstart surface=patch_only optim.lr=1e-4 run.dir=outputs/patch",
    "vla-rl train run.resume=outputs/patch",
    "vla-rl train -m experiment=quickstart optim.lr=3e-6,1e-5 loss.kl_beta=0,1",
)
MULTIRUN = {"-m", "--multirun"}
PLACE = ("run.resume", "run.dir")


def run(argv: Sequence[str]) -> int:
    """Start or continue a run; the table at the end, or one JSON object with --json."""
    if is_helper():
        return help_out()
    if MULTIRUN & set(argv):
        refuse_torchrun("a multirun gives every run a process of its own")
        from vla_rl.cli.multirun import run as run_multirun

        return run_multirun([argument for argument in argv if argument not in MULTIRUN])
    about = "Token-level GRPO on real episodes. With -m (--multirun) every combination of values is a run of its own."
    options = parse("train", argv, about, EXAMPLES)
    reader = compose_or_resume("config", options.overrides, FREE_OF_TRAINING)
    with ProgressView() as view:
        train(reader, options, view)
    return EXIT_OK


def train(
    reader: ConfigReader, options: Options, view: ProgressView, registered: Mapping[str, Any] | None = None
) -> tuple[Outcome, Path]:
    """Run the one trainer on a configuration and show what came out.

    Args:
        registered: which registration, rung and arm this is, for the manifest; None for a run of its own. Its
            `sealed` says whether a read rests on the held-out evaluations: their outcomes are not shown then.
    """
    sealed = bool(registered and registered["sealed"])
    outcome, directory = _train(reader, options, TrainingView(view, sealed=sealed), registered)
    if sealed:
        view.say(f"run directory {directory}: held-out evaluations are sealed until they are read")
        return outcome, directory
    summary = closing(directory, finished=outcome.finished)
    if options.json:
        print_json(summary)
    else:
        show_closing(view, summary, registered["id"] if registered else None)
    return outcome, directory


def _train(
    reader: ConfigReader, options: Options, view: TrainingView, registered: Mapping[str, Any] | None
) -> tuple[Outcome, Path]:
    check_token_head(reader.tree["policy"].get("serve_head"), "the trainer")
    settings = reader.section("run", RunConfig)
    geometry, held_out = reader.section("geometry", GeometryConfig), reader.section("eval", MonitorConfig)
    seeds = parse_seeds(held_out.seeds)
    evaluate_at = check_settings(settings, Geometry.of(geometry), held_out, seeds)
    experience, loss = reader.section("experience", ExperienceConfig), reader.section("loss", LossConfig)
    check_experience(experience, loss, geometry)
    distributed = reader.section("distributed", DistributedConfig)
    check_distributed(distributed)
    require_rendering()
    device = prepare_torch(settings.device, settings.threads, settings.seed)
    from vla_rl.evals.scene import scene_facts
    from vla_rl.rl.gates import PARITY, Gates
    from vla_rl.rl.guards import Guards
    from vla_rl.rl.savepoints import refuse_ended
    from vla_rl.rl.trained import base_of
    from vla_rl.rl.trainer import GrpoTrainer

    if settings.resume:
        refuse_ended(Path(settings.resume))
    surface = reader.component("surface", run_seed=settings.seed)  # what it refuses, it refuses before weights are read
    with base_of(settings.resume):
        policy = reader.component("policy", device=device)
    sampler = reader.component("sampler", policy=policy, run_seed=settings.seed)
    reward, mirror = reader.component("reward"), reader.component("logger")
    sim = reader.component_spec("sim")
    run_dir, started = _open(reader, settings, registered), False
    try:
        with (
            shared(distributed, reader, device) as learner,
            reader.component("pool", env_spec=sim, plugins=reader.plugins, on_event=view.on_event) as pool,
        ):
            scene = scene_facts(policy, pool)
            run_dir.record_scene(scene)
            rows = demonstrated(
                experience, settings, policy=policy, scene=scene, held_out=seeds, run_dir=run_dir
            )  # fmt: skip
            evaluate = reader.component(
                "evaluator", policy=policy, sampler=sampler, pool=pool, seeds=seeds, temperature=held_out.temperature,
                slots=held_out.slots, scene=scene, on_event=lambda event: trainer.beat(event),
            )  # fmt: skip
            gates, parity = reader.section("gates", GatesConfig), None
            bounds = Bounds(gates.parity_successes, gates.parity_interacted)
            record = gates.parity_record
            if record and PARITY not in run_dir.passed_gates():
                name = reader.component_spec("policy").get("checkpoint", "policy")
                which = {"name": name, "digest": policy.digest(), "frames": "own"}
                parity = serving_parity(
                    record, bounds, which, seeds=seeds, temperature=held_out.temperature, scene=scene, sim=sim
                )  # fmt: skip
            trainer = GrpoTrainer(
                policy=policy,
                sampler=sampler,
                pool=pool,
                surface=surface,
                reward=reward,
                geometry=geometry,
                loss=loss,
                token_loss=reader.component("token_loss"),
                optim=reader.section("optim", OptimConfig),
                checkpoint=reader.section("checkpoint", CheckpointConfig),
                steps=settings.steps,
                slots=held_out.slots,
                max_replans=scene["max_replans"],
                run_dir=run_dir,
                evaluate=evaluate,
                evaluate_at=evaluate_at,
                guards=Guards(reader.section("tripwires", TripwiresConfig), reader.section("budget", BudgetConfig)),
                gates=Gates(gates, parity),
                demonstrations=rows,
                learner=learner,
                max_wall_s=options.left_s(settings.max_wall_s),
                on_event=view.on_event,
            )
            reader.check_consumed()
            started = True
            with watched(run_dir.path, gpus=processes() * int(device == "cuda")):
                return _run(trainer, mirror, reader, run_dir.path, view), run_dir.path
    except VlaRlError:
        if not started and not settings.resume:
            run_dir.discard()
        raise
    finally:
        run_dir.close()


def check_settings(
    settings: RunConfig, geometry: Geometry, held_out: MonitorConfig, seeds: tuple[int, ...]
) -> frozenset[int]:
    """Everything that can be refused before a second is spent on loading; after which updates there is an evaluation.

    Seeds that are looked at on the way are used up by it: some bands are open to a first and a last look only.
    """
    evaluate_at = evaluation_steps(settings.steps, held_out.every, held_out.at_steps)
    check_use(seeds, "eval" if evaluate_at <= {0, settings.steps} else "watch", where="eval.seeds")
    training = geometry.training_seeds(settings.steps)
    check_use(training, "train", where="geometry.train_seed_base")
    check_disjoint(training, seeds)
    check_plain(held_out)
    if settings.dir and not settings.resume:
        check_unused(Path(settings.dir))
    return evaluate_at


def _run(trainer: Any, mirror: Any, reader: ConfigReader, directory: Path, view: TrainingView) -> Outcome:
    """Run the trainer with its mirror open, and tell the mirror how it ended."""
    mirror.start(directory.name, str(directory), reader.tree)
    view.mirror = mirror
    code = 1
    try:
        outcome = trainer.run()
        code = EXIT_OK
    except VlaRlError as error:
        code = error.exit_code
        raise
    finally:
        mirror.finish(code)
    return outcome


def _open(reader: ConfigReader, settings: RunConfig, registered: Mapping[str, Any] | None) -> RunDir:
    """The run directory: created exclusively, or the one to continue."""
    from vla_rl.rl.rundir import RunDir

    manifest = {
        **identity(),
        "overrides": list(reader.overrides),
        "config_digest": reader.digest(*PLACE, *FREE_OF_TRAINING),
        "registered": None if registered is None else dict(registered),
    }
    name, resume, directory = settings.name, settings.resume, settings.dir
    if resume:
        return RunDir.resume(Path(resume), config=reader.tree, manifest=manifest, free=(*PLACE, *FREE_OF_TRAINING))
    return RunDir.create(Path(directory or new_run_dir(name)), config=reader.tree, manifest=manifest)
