"""`vla-rl sft`: fit a fresh policy, a policy checkpoint or a model without action tokens to demonstrations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.heldout import check_plain
from vla_rl.cli.options import Options, parse, print_json
from vla_rl.cli.resume import FREE_WITH_POOL, compose_or_resume, open_directory
from vla_rl.cli.sampling import sampler_of
from vla_rl.cli.startup import new_run_dir, prepare_torch
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import EvalConfig, SftConfig, SftJobConfig, TwinConfig
from vla_rl.errors import ConfigError
from vla_rl.policy.heads import AR, FLOW, check_flow_temperature
from vla_rl.report.fitting import FittingView, curve
from vla_rl.report.progress import ProgressView
from vla_rl.seeds import check_disjoint, check_use, parse_seeds
from vla_rl.sft.transitions import (
    FRESH_TWIN,
    OTHER_MODEL,
    Objective,
    Start,
    check_settings,
    check_transition,
    expert_to_train,
)
from vla_rl.sim.canary import require_rendering

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy
    from vla_rl.sft.dataset import Demonstrations
    from vla_rl.sft.trainer import SftResult

EXAMPLES = (
    "vla-rl sft sft.demos=outputs/demos/small sft.steps=200 sft.batch_rows=32 sft.warmup_steps=20",
    "vla-rl sft sft.demos=outputs/demos/full run.max_wall_s=540 sft.save_at=[800,1700]",
    "vla-rl sft sft.demos=outputs/demos/full sft.ema=0.999 sft.eval_every=400 eval=development",
    "vla-rl sft sft.demos=outputs/demos/full sft.base=outputs/sft/first/policy sft.lr=1e-4",
    "vla-rl sft sft.demos=outputs/demos/full sft.objective=joint sft.insulate=true   # tokens and action expert",
    "vla-rl sft sft.demos=outputs/demos/full sft.base=SmolVLM-256M-Instruct   # any model of docs/policies.md",
)
FRESH = "fresh"  # a value of `sft.expert`
Play = Callable[[int], dict[str, Any]]


def run(argv: Sequence[str]) -> int:
    """Train, or continue to train, and say where the policy is."""
    options = parse("sft", argv, "Supervised fine-tuning of a policy on demonstrations.", EXAMPLES)
    reader = compose_or_resume("sft", options.overrides, FREE_WITH_POOL)
    with ProgressView() as view:
        directory, result = _train(reader, options, FittingView(view))
        if not options.json and (table := curve(directory)):
            view.show(table)
    if options.json:
        print_json(
            {"directory": str(directory), **dataclasses.asdict(result), "policy_dir": str(result.policy_dir or "")}
        )
    return 0


def _train(reader: ConfigReader, options: Options, view: FittingView) -> tuple[Path, SftResult]:
    job, settings = reader.section("run", SftJobConfig), reader.section("sft", SftConfig)
    objective = _objective(settings)
    head = settings.eval_head or (FLOW if not objective.has_tokens else AR)
    watched = _watched(reader, head) if settings.eval_every else ()
    device = prepare_torch(job.device, job.threads, job.seed)
    import torch

    from vla_rl.sft.dataset import open_demonstrations, training_rows
    from vla_rl.sft.trainer import SftTrainer

    demos = open_demonstrations(
        Path(settings.demos),
        chunk_ticks=settings.chunk_ticks,
        frame_stride=settings.frame_stride,
        episodes=settings.episodes,
    )
    check_disjoint(demos.dataset.seeds, watched, where="sft.demos and eval.seeds")
    base, start = _start(settings, objective)
    directory = open_directory(reader, Path(job.dir or new_run_dir("sft")))
    policy = _policy(reader, settings, base, start, demos, job.seed, view)
    fresh, width = settings.expert == FRESH, settings.expert_width
    if objective.has_flow:
        expert_to_train(policy, start, fresh=fresh, width=width, seed=job.seed)
    policy.to(device)
    counts = [_millions(policy.model), *([_millions(policy.expert)] if policy.expert is not None else [])]
    told = " and an action expert of ".join(counts)
    view.say(f"{told} parameters, prompt of {policy.prompt.length} tokens, on {device}")
    with _player(reader, policy, head, demos, watched, job.seed, view) as evaluate:
        rows = training_rows(
            demos,
            policy.stats,
            policy.codec,
            torch.device(device),
            scratch=directory,
            threads=job.threads,
            allow_holes=settings.allow_holes or not objective.has_tokens,
            on_block=lambda done: view.decoding(done, len(demos)),
        )
        if rows.holes and objective.has_tokens:
            view.say(f"{rows.holes} levels have no symbol in the action codec; the labels of their chunks are short")
        trainer = SftTrainer(
            policy=policy,
            rows=rows,
            run_dir=directory,
            seed=job.seed,
            max_wall_s=options.left_s(job.max_wall_s),
            on_event=view.on_event,
            objective=objective,
            evaluate=evaluate,
            **{f.name: getattr(settings, f.name) for f in dataclasses.fields(SftConfig) if f.name in TRAINER_KEYS},
        )
        # A base brings its own network and perhaps its own tokens, and without evaluations there is no simulator: keys
        # for those are harmless unless they are set.
        reader.check_consumed() if evaluate and not settings.base else reader.check_overrides_consumed()
        return directory, trainer.run()


def _objective(settings: SftConfig) -> Objective:
    """What is to be minimised; settings that say nothing under it are refused before anything is loaded."""
    objective = Objective(settings.objective, settings.ce_weight, settings.insulate)
    check_settings(
        objective,
        fresh_expert=settings.expert == FRESH,
        expert_lr=settings.expert_lr,
        eval_head=settings.eval_head,
    )
    return objective


def _start(settings: SftConfig, objective: Objective) -> tuple[Path | None, Start]:
    """The directory of `sft.base`, and what it is to start from; refused before a weight is read.

    Raises:
        ConfigError: a cell of the transition matrix that is closed.
    """
    from vla_rl.policy.graft import has_action_tokens
    from vla_rl.policy.parts import read_parts
    from vla_rl.policy.sources import Sources

    base, start = _base(settings), FRESH_TWIN
    sources = Sources(settings.base_norm_tag, settings.base_fast_tokenizer)
    if base is not None:
        start = Start.of(read_parts(base, sources)) if has_action_tokens(base) else OTHER_MODEL
    fresh, allow = settings.expert == FRESH, settings.allow_stale_head
    check_transition(start, objective, fresh_expert=fresh, allow_stale=allow)
    return base, start


def _policy(
    reader: ConfigReader,
    settings: SftConfig,
    base: Path | None,
    start: Start,
    demos: Demonstrations,
    seed: int,
    view: FittingView,
) -> VlaPolicy:
    """The policy to start from, on the CPU: a checkpoint, a model that is given action tokens, or a fresh twin."""
    import torch

    from vla_rl.policy.graft import give_action_tokens
    from vla_rl.policy.molmo2 import TwinArchitecture
    from vla_rl.policy.policy import load_policy, new_twin
    from vla_rl.sft.dataset import fit_statistics

    twin, task = reader.section("twin", TwinConfig), reader.value("task") or demos.dataset.task
    if base is not None and start.trained:
        policy = load_policy(
            checkpoint=str(base), device="cpu", serve_head=AR, task=task, norm_tag=settings.base_norm_tag,
            fast_tokenizer=settings.base_fast_tokenizer, allow_stale_head=True,
        )  # fmt: skip
        view.say(f"{len(demos)} windows from {settings.demos}; starting from {base} with its own action tokens")
    else:
        view.say(f"{len(demos)} windows from {settings.demos}; fitting the action tokens")
        stats, codec = fit_statistics(demos, codec_scale=settings.codec_scale, codec_vocab=settings.codec_vocab)
        fitted = {"codec": codec, "stats": stats, "task": task, "seed": seed}
        if base is not None:
            policy = give_action_tokens(base, **fitted, dtype=torch.float32)
        else:
            policy = new_twin(**fitted, architecture=TwinArchitecture.of(twin, image_px=demos.image_px))
    policy.training_scene = demos.dataset.scene
    return policy


def _millions(network: Any) -> str:
    return f"{sum(p.numel() for p in network.parameters()) / 1e6:.2f} M"


def _base(settings: SftConfig) -> Path | None:
    """The directory of `sft.base`."""
    from vla_rl.policy.hub import resolve

    base, revision = settings.base, settings.base_revision
    return resolve(base, revision, where="sft.base", pin="sft.base_revision") if base else None


def _watched(reader: ConfigReader, head: str) -> tuple[int, ...]:
    """The seeds to evaluate on between steps; refused before anything is loaded."""
    held_out = reader.section("eval", EvalConfig)
    seeds = parse_seeds(held_out.seeds)
    check_use(seeds, "watch", where="eval.seeds")
    check_plain(held_out)
    check_flow_temperature(head, held_out.temperature)
    require_rendering()
    return seeds


@contextmanager
def _player(
    reader: ConfigReader,
    policy: VlaPolicy,
    head: str,
    demos: Demonstrations,
    seeds: Sequence[int],
    run_seed: int,
    view: FittingView,
) -> Iterator[Play | None]:
    """What plays the seeds with one head of the policy as it is at that moment, in the scene of the demonstrations;
    None for no seeds.

    Raises:
        ConfigError: the simulator is another scene, or shows pictures of another size.
    """
    if not seeds:
        yield None
        return
    from vla_rl.evals.monitor import HeldOut
    from vla_rl.evals.scene import scene_facts
    from vla_rl.policy.sampler import release

    sampler = sampler_of(reader, policy, head, run_seed)
    spec = reader.component_spec("sim")
    with reader.component("pool", env_spec=spec, plugins=reader.plugins, on_event=view.on_event) as pool:
        scene = scene_facts(policy, pool)
        if scene["image_px"] not in (None, demos.image_px):
            raise ConfigError(
                f"the simulator shows {scene['image_px']} px pictures, the demonstrations {demos.image_px} px ones",
                where="sim.image_px",
                remedy=f"sim.image_px={demos.image_px}",
            )
        held_out = reader.section("eval", EvalConfig)
        evaluate = HeldOut(
            sampler=sampler, pool=pool, seeds=seeds, temperature=held_out.temperature, slots=held_out.slots,
            scene=scene, on_event=view.on_event,
        )  # fmt: skip

        def played(step: int) -> dict[str, Any]:
            release(sampler)  # fused optimisers move weights without a sign
            return {"head": head, **evaluate(step).row}

        yield played


READ_HERE = {
    *("demos", "episodes", "frame_stride", "chunk_ticks", "codec_scale", "codec_vocab", "allow_holes"),
    *("base", "base_revision", "base_norm_tag", "base_fast_tokenizer"),
    *("objective", "ce_weight", "insulate", "expert", "expert_width", "allow_stale_head", "eval_head"),
}
TRAINER_KEYS = frozenset(f.name for f in dataclasses.fields(SftConfig)) - READ_HERE
