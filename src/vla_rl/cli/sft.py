"""`vla-rl sft`: fit a fresh policy, a policy checkpoint or a model without action tokens to demonstrations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import compose_or_resume, open_directory
from vla_rl.cli.startup import new_run_dir, prepare_torch
from vla_rl.config.schema import SftConfig, SftJobConfig, TwinConfig
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.events import Event

EXAMPLES = (
    "vla-rl sft sft.demos=outputs/demos/small sft.steps=200 sft.batch_rows=32 sft.warmup_steps=20",
    "vla-rl sft sft.demos=outputs/demos/full run.max_wall_s=540 sft.save_at=[800,1700]",
    "vla-rl sft sft.demos=outputs/demos/full sft.base=outputs/sft/first/policy sft.lr=1e-4",
    "vla-rl sft sft.demos=outputs/demos/full sft.base=SmolVLM-256M-Instruct   # any model of docs/policies.md",
)


def run(argv: Sequence[str]) -> int:
    """Train, or continue to train, and say where the policy is."""
    options = parse("sft", argv, "Supervised fine-tuning of a policy on demonstrations.", EXAMPLES)
    reader = compose_or_resume("sft", options.overrides, ("run.max_wall_s",))
    job, settings, twin = (
        reader.section("run", SftJobConfig),
        reader.section("sft", SftConfig),
        reader.section("twin", TwinConfig),
    )
    device = prepare_torch(job.device, job.threads, job.seed)
    import torch

    from vla_rl.policy.graft import give_action_tokens, has_action_tokens
    from vla_rl.policy.molmo2 import TwinArchitecture
    from vla_rl.policy.policy import load_policy, new_twin
    from vla_rl.sft.dataset import fit_statistics, open_demonstrations, training_rows
    from vla_rl.sft.events import PolicySaved, SftLogged, SftStopped
    from vla_rl.sft.trainer import SftTrainer

    with ProgressView() as view:

        def on_event(event: Event) -> None:
            if isinstance(event, SftLogged):
                view.advance("fine-tuning", event.step, event.steps, "steps")
                view.say(f"step {event.step}: loss {event.loss:.3f}, {event.rows_per_s:.0f} rows/s")
            elif isinstance(event, PolicySaved):
                view.say(f"step {event.step}: policy in {event.path}")
            elif isinstance(event, SftStopped):
                view.say(f"stopped at step {event.step}; continue with vla-rl sft run.resume={event.run_dir}")

        demos = open_demonstrations(
            Path(settings.demos),
            chunk_ticks=settings.chunk_ticks,
            frame_stride=settings.frame_stride,
            episodes=settings.episodes,
        )
        task = reader.value("task") or demos.dataset.task
        directory = open_directory(reader, Path(job.dir or new_run_dir("sft")))
        base = _base(settings)
        tag, fast = settings.base_norm_tag, settings.base_fast_tokenizer
        if base is not None and has_action_tokens(base):
            policy = load_policy(
                checkpoint=str(base), device="cpu", serve_head="ar", task=task, norm_tag=tag, fast_tokenizer=fast
            )
            view.say(f"{len(demos)} windows from {settings.demos}; starting from {base} with its own action tokens")
        else:
            view.say(f"{len(demos)} windows from {settings.demos}; fitting the action tokens")
            stats, codec = fit_statistics(demos, codec_scale=settings.codec_scale, codec_vocab=settings.codec_vocab)
            fitted = {"codec": codec, "stats": stats, "task": task, "seed": job.seed}
            if base is not None:
                policy = give_action_tokens(base, **fitted, dtype=torch.float32)
            else:
                policy = new_twin(**fitted, architecture=TwinArchitecture.of(twin, image_px=demos.image_px))
        policy.training_scene = demos.dataset.scene
        policy = policy.to(device)
        parameters = sum(p.numel() for p in policy.model.parameters())
        view.say(f"{parameters / 1e6:.2f} M parameters, prompt of {policy.prompt.length} tokens, on {device}")
        rows = training_rows(
            demos,
            policy.stats,
            policy.codec,
            torch.device(device),
            scratch=directory,
            threads=job.threads,
            allow_holes=settings.allow_holes,
            on_block=lambda done: view.advance("decoding", done, len(demos), "windows"),
        )
        if rows.holes:
            view.say(f"{rows.holes} levels have no symbol in the action codec; the labels of their chunks are short")
        trainer = SftTrainer(
            policy=policy,
            rows=rows,
            run_dir=directory,
            seed=job.seed,
            max_wall_s=job.max_wall_s,
            on_event=on_event,
            **{f.name: getattr(settings, f.name) for f in dataclasses.fields(SftConfig) if f.name in TRAINER_KEYS},
        )
        # A base brings its own network and perhaps its own tokens: keys for those are harmless unless they are set.
        reader.check_consumed() if base is None else reader.check_overrides_consumed()
        result = trainer.run()
    if options.json:
        print_json(
            {"directory": str(directory), **dataclasses.asdict(result), "policy_dir": str(result.policy_dir or "")}
        )
    return 0


def _base(settings: SftConfig) -> Path | None:
    """The directory of `sft.base`."""
    from vla_rl.policy.hub import resolve

    base, revision = settings.base, settings.base_revision
    return resolve(base, revision, where="sft.base", pin="sft.base_revision") if base else None


DATA_KEYS = {
    *("demos", "episodes", "frame_stride", "chunk_ticks", "codec_scale", "codec_vocab", "allow_holes"),
    *("base", "base_revision", "base_norm_tag", "base_fast_tokenizer"),
}
TRAINER_KEYS = frozenset(f.name for f in dataclasses.fields(SftConfig)) - DATA_KEYS
