"""`vla-rl plan`: what a training run would need and cost, before anything is spent but two episodes."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.experience import check_experience
from vla_rl.cli.options import Options, parse, print_json
from vla_rl.cli.startup import prepare_torch
from vla_rl.cli.train import check_settings
from vla_rl.config.compose import compose
from vla_rl.config.differences import differences
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import (
    CheckpointConfig,
    ExperienceConfig,
    GeometryConfig,
    LossConfig,
    MonitorConfig,
    OptimConfig,
    RunConfig,
)
from vla_rl.errors import EXIT_OK, UsageError
from vla_rl.policy.heads import check_token_head
from vla_rl.report.progress import ProgressView
from vla_rl.rl.plan import Geometry
from vla_rl.rollout.events import Event, PredictRound
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.seeds import parse_seeds
from vla_rl.sim.canary import require_rendering
from vla_rl.stats.groups import barren_wave, mixed_share, mixed_share_range
from vla_rl.stats.intervals import clopper_pearson

if TYPE_CHECKING:
    from vla_rl.rl.forecast import Playing, Probe
    from vla_rl.rl.settings import UpdateSettings

EXAMPLES = (
    "vla-rl plan experiment=quickstart",
    "vla-rl plan experiment=quickstart run.steps=40 --success-rate 0.5 --price 2.5",
    "vla-rl plan policy.checkpoint=outputs/sft/run/policy --against experiment=quickstart --no-probe --json",
    "vla-rl plan --prereg E002:R1",
)
FLAGS = {
    "no-probe": (None, "play no episodes: no times, and no success rate unless one is given"),
    "success-rate": ("P", "forecast groups from this success rate (default: the probe's)"),
    "against": ("OVERRIDES", "list what differs from this preset (default: the documented constants)"),
    "price": ("PER_HOUR", "price of an hour of this machine, in any currency"),
    "prereg": ("ID", "the configuration of a registration, ID or ID:RUNG, instead of overrides"),
}
PROBE_SEEDS = (500, 501)  # of the band of probes


def run(argv: Sequence[str]) -> int:
    """Print tables or, with --json, the plan."""
    options = parse("plan", argv, "What a training run would need and cost.", EXAMPLES, FLAGS)
    rate, price = (_number(options, name) for name in ("success-rate", "price"))
    reader = _registered(options) if options.flags["prereg"] else compose("config", options.overrides)
    preset = shlex.split(options.flags["against"] or "")
    with ProgressView() as view:
        plan = _plan(reader, view, probing=not options.flags["no-probe"], rate=rate)
        there = compose("config", preset).tree
        plan["cost"] = _cost(plan, price)
        plan["against"] = {
            "preset": " ".join(preset) or "the documented constants",
            "differences": {key: list(pair) for key, pair in differences(reader.tree, there).items()},
        }
        if options.json:
            print_json(plan)
        else:
            from vla_rl.report.plan import plan as tables

            view.show(tables(plan))
    return EXIT_OK


def _registered(options: Options) -> ConfigReader:
    """The configuration that a registration launches with, of its first rung or the one that is named."""
    from vla_rl.cli.prereg.common import folder
    from vla_rl.prereg.registered import config_of

    if options.overrides:
        raise UsageError("a registration has its configuration", where="--prereg", remedy="leave the overrides away")
    id, _, rung = options.flags["prereg"].partition(":")
    return ConfigReader(config_of(folder(id).load().registration, rung or None, None))


@dataclass(frozen=True)
class _Job:
    """The sections of the configuration, read and checked."""

    settings: RunConfig
    held_out: MonitorConfig
    evaluate_at: frozenset[int]
    loss: LossConfig
    optim: OptimConfig
    keeping: CheckpointConfig
    geometry: Geometry
    demonstrated: int | None  # rows of demonstrations an update; None if it plays a wave

    @classmethod
    def of(cls, reader: ConfigReader) -> _Job:
        settings, held_out = reader.section("run", RunConfig), reader.section("eval", MonitorConfig)
        constants, experience = (
            reader.section("geometry", GeometryConfig),
            reader.section("experience", ExperienceConfig),
        )
        geometry = Geometry.of(constants)
        evaluate_at = check_settings(settings, geometry, held_out, parse_seeds(held_out.seeds))
        loss, optim = reader.section("loss", LossConfig), reader.section("optim", OptimConfig)
        check_experience(experience, loss, constants)
        keeping = reader.section("checkpoint", CheckpointConfig)
        return cls(settings, held_out, evaluate_at, loss, optim, keeping, geometry, experience.rows)

    @property
    def temperature(self) -> float:
        """At which rows are scored."""
        from vla_rl.rl.demonstrated import SUPERVISED

        return SUPERVISED if self.demonstrated else self.geometry.temperature

    @property
    def episodes(self) -> int:
        """Of a wave."""
        return self.geometry.seeds * self.geometry.rule.draws


def _plan(reader: ConfigReader, view: ProgressView, *, probing: bool, rate: float | None) -> dict[str, Any]:
    """Everything but what comes from the command line alone."""
    check_token_head(reader.tree["policy"].get("serve_head"), "the trainer")
    job = _Job.of(reader)
    require_rendering()
    device = prepare_torch(job.settings.device, job.settings.threads, job.settings.seed)
    from vla_rl.evals.scene import scene_facts
    from vla_rl.rl import forecast, preflight
    from vla_rl.rl.anchor import Anchor
    from vla_rl.rl.memory import Kept, measured, memory_lines
    from vla_rl.rl.settings import UpdateSettings
    from vla_rl.rl.update import build_optimizer

    constants, loss = UpdateSettings.of(job.loss, job.optim), job.loss
    surface = reader.component("surface", run_seed=job.settings.seed)
    policy = reader.component("policy", device=device)
    preflight.set_passes(policy, job.optim)
    sampler = reader.component("sampler", policy=policy, run_seed=job.settings.seed)
    parameters = surface.trainable(policy)
    optimizer = build_optimizer(parameters, job.optim, surface)
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        longest = scene_facts(policy, pool)["max_replans"]
        observation = preflight.render_canary(pool, PROBE_SEEDS[0])
        activations, peak = measured(policy, parameters, optimizer, constants, job.temperature, observation)
        kept = Kept(
            anchored=bool(loss.kl_rows or loss.kl_beta) and Anchor.copies(policy, parameters),
            undoable=loss.trust_region is not None,
        )
        memory = memory_lines(policy, parameters, optimizer, sampler, kept, activations=activations, peak=peak)
        probe = _probe(policy, sampler, pool, job, constants, optimizer, view) if probing else None
        pids = [pid for pid in getattr(pool, "worker_pids", list)() if pid]
        workers = {"count": getattr(pool, "workers", 0), "bytes": [_resident(pid) for pid in pids]}
        playing = forecast.Playing(max(1, workers["count"]), pool.groups, None if device == "cuda" else os.cpu_count())
    stored = 0 if job.demonstrated else job.geometry.most_seeds * job.geometry.draws * longest
    disk = preflight.disk_bytes(
        policy, parameters, observation, rows=stored,
        waves=job.settings.steps if job.keeping.keep_rows else job.keeping.every, checkpoints=job.keeping.keep + 1,
    )  # fmt: skip
    return {
        "device": device,
        "parameters": forecast.parameter_counts(policy, parameters),
        "memory": [asdict(line) for line in memory],
        "memory_bytes": {line.name: line.bytes for line in memory},
        "workers": workers,
        "disk_bytes": {**disk, "free": shutil.disk_usage(Path.cwd()).free},
        "probe": asdict(probe) if probe else None,
        "times": _times(probe, playing, job, constants, bitwise=device == "cpu") if probe else None,
        "groups": None if job.demonstrated else _groups(probe, rate, job.geometry),
    }


def _probe(
    policy: Any,
    sampler: Any,
    pool: Any,
    job: _Job,
    constants: UpdateSettings,
    optimizer: Any,
    view: ProgressView,
) -> Probe:
    """Play two episodes as the run would, and time a predict and an update on what they saw."""
    from vla_rl.policy.prompt import Observation
    from vla_rl.policy.sampler import PredictRequest, release
    from vla_rl.rl.drift import log_probabilities
    from vla_rl.rl.forecast import Probe, update_row_seconds
    from vla_rl.rollout.wave import run_wave

    def on_event(event: Event) -> None:
        if isinstance(event, PredictRound):
            view.advance("probe", event.done, event.total, "episodes")

    specs, temperature = [EpisodeSpec(seed) for seed in PROBE_SEEDS], job.geometry.temperature
    wave = run_wave(
        sampler=sampler, pool=pool, specs=specs, temperature=temperature, slots=len(specs), on_event=on_event
    )
    batch = -(-min(job.held_out.slots, job.episodes) // pool.groups)
    rows = [wave.rows[index % len(wave.rows)] for index in range(batch)]
    requests = [
        PredictRequest(Observation(row.frames, row.state_deg), row.spec.seed, draw, row.replan)
        for draw, row in enumerate(rows)
    ]
    sampler.sample(requests[:1], temperature)
    started = time.perf_counter()
    sampler.sample(requests, temperature)
    predict_s = time.perf_counter() - started
    release(sampler)  # as before an update
    started = time.perf_counter()
    log_probabilities(policy, wave.rows, temperature=temperature, limits=constants.limits)
    score_s = time.perf_counter() - started
    return Probe(
        episodes=len(wave.episodes),
        successes=sum(bool(e.metrics["success"]) for e in wave.episodes),
        replans=len(wave.rows),
        tokens=sum(e.tokens for e in wave.episodes),
        env_s=sum(e.wall_s for e in wave.episodes),
        predict_row_s=predict_s / len(requests),
        update_row_s=update_row_seconds(policy, wave.rows, constants, temperature, optimizer),
        score_row_s=score_s / len(wave.rows),
    )


def _times(probe: Probe, playing: Playing, job: _Job, constants: UpdateSettings, *, bitwise: bool) -> dict[str, Any]:
    """Seconds of a step, an evaluation and the run, and of what a kill costs."""
    from vla_rl.rl.forecast import demonstrated_step_seconds, redo_seconds, step_seconds, wave_seconds

    updated: dict[str, Any] = {"settings": constants, "kl_rows": job.loss.kl_rows, "kl_beta": job.loss.kl_beta}
    if job.demonstrated:
        step = demonstrated_step_seconds(probe, rows=job.demonstrated, **updated)
    else:
        step = step_seconds(probe, playing, episodes=job.episodes, **updated)
    steps, evaluations = job.settings.steps, len(job.evaluate_at)
    eval_s = wave_seconds(probe, playing, episodes=len(parse_seeds(job.held_out.seeds)))
    lost = {"every": job.keeping.every, "rollout_s": step["rollout_s"], "update_s": step["update_s"]}
    return {
        **step,
        "eval_s": eval_s,
        "steps": steps,
        "evaluations": evaluations,
        "run_s": steps * step["step_s"] + evaluations * eval_s,
        "redo": redo_seconds(**lost, bitwise=bitwise and not job.demonstrated),
    }


def _groups(probe: Probe | None, rate: float | None, geometry: Geometry) -> dict[str, Any] | None:
    """The forecast of groups with both outcomes; without a rate there is none."""
    if rate is None and probe is None:
        return None
    draws = geometry.rule.draws
    low = high = rate
    if rate is None:
        assert probe is not None
        rate = probe.successes / probe.episodes
        low, high = clopper_pearson(probe.successes, probe.episodes)
    assert low is not None and high is not None
    return {
        "success_rate": rate,
        "success_rate_interval": [low, high],
        "draws": draws,
        "groups": geometry.seeds,
        "mixed_share": mixed_share(rate, draws),
        "mixed_share_interval": list(mixed_share_range(low, high, draws)),
        "barren_wave": barren_wave(rate, draws, geometry.seeds),
    }


def _cost(plan: dict[str, Any], price: float | None) -> dict[str, Any] | None:
    """Hours that the run holds the machine, and what they cost; None without times."""
    if plan["times"] is None:
        return None
    hours = {name: plan["times"][f"{name}_s"] / 3600 for name in ("step", "run")}
    return {
        "step_h": hours["step"],
        "run_h": hours["run"],
        "step_price": None if price is None else price * hours["step"],
        "run_price": None if price is None else price * hours["run"],
    }


def _resident(pid: int) -> int | None:
    """Memory of a process in bytes; None where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _number(options: Options, name: str) -> float | None:
    """The value of a flag.

    Raises:
        UsageError: it is no number, or out of range.
    """
    text = options.flags[name]
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= (1 if name == "success-rate" else float("inf")):
        raise UsageError(f"{text!r} is no value for this", where=f"--{name}", remedy="e.g. 0.5")
    return value
