"""`vla-rl probe`: temperatures x seeds x draws against one greedy pass, read and judged by a fixed rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import compose_or_resume, open_directory
from vla_rl.cli.sealed import FREE_AT_RESUME, choose_directory, conditions, say_stopped, without_leftovers
from vla_rl.cli.startup import prepare_torch
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import EvalJobConfig, ProbeConfig
from vla_rl.errors import EXIT_OK, ConfigError
from vla_rl.evals.kept import FOLDER, Deadline, Kept, KeptEpisodes, OutOfTime, count_kept, discard_kept
from vla_rl.evals.probe import Rule, Scores, check_temperatures, decide, read_greedy, read_temperature
from vla_rl.files import write_atomic
from vla_rl.policy.heads import check_token_head
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.events import Event, PredictRound
from vla_rl.rollout.jsonl import append_jsonl, dump_json
from vla_rl.rollout.records import Episode, EpisodeSpec, facts
from vla_rl.seeds import check_use, parse_seeds
from vla_rl.sim.canary import require_rendering

EXAMPLES = (
    "vla-rl probe",
    "vla-rl probe probe.temperatures=[0.5,0.7,1.0] reward=v1_floored --json",
    "vla-rl probe policy.checkpoint=outputs/sft/run/policy run.max_wall_s=540 run.dir=outputs/probe/base",
    "vla-rl probe run.resume=outputs/probe/base",
)
RECORD, EPISODES, GREEDY = "probe.json", "episodes.jsonl", 0.0

Arm = tuple[Episode, ...]


def run(argv: Sequence[str]) -> int:
    """Play what is missing, read it, judge it, and print a table or, with --json, the record. A verdict of `stop` is a
    result, not an error."""
    options = parse("probe", argv, "Choose a sampling temperature, or stop.", EXAMPLES)
    reader = compose_or_resume("probe", options.overrides, FREE_AT_RESUME)
    job, settings = reader.section("run", EvalJobConfig), reader.section("probe", ProbeConfig)
    check_token_head(reader.tree["policy"].get("serve_head"), "the probe")
    deadline, seeds = Deadline(options.left_s(job.max_wall_s)), parse_seeds(settings.seeds)
    check_use(seeds, "eval", where="probe.seeds")
    temperatures, draws, rule = check_temperatures(settings.temperatures), settings.draws, Rule.of(settings)
    arms = {GREEDY: [EpisodeSpec(seed) for seed in seeds]}
    arms |= {t: [EpisodeSpec(seed, draw) for seed in seeds for draw in range(draws)] for t in temperatures}
    reward, directory = reader.component("reward"), choose_directory("probe", job, RECORD)
    require_rendering()
    before, total = count_kept(directory), sum(map(len, arms.values()))
    with ProgressView() as view:
        try:
            with without_leftovers(directory):
                played, facts = _play(reader, job, settings.slots, arms, directory, deadline, view)
        except OutOfTime:
            say_stopped(view, "probe", directory, before=before, total=total, as_json=options.json)
            return EXIT_OK
        scores = {t: {e.spec: reward.terms(e.metrics)["total"] for e in arm} for t, arm in played.items()}
        record = {**facts, "seeds": settings.seeds, "draws": draws, **_judge(played, scores, rule)}
        _write(directory, record, played, scores)
        if options.json:
            print_json(record)
        else:
            from vla_rl.report.probe import probe

            view.show(probe(record))
            view.say(f"files in {directory}: {RECORD}, {EPISODES}")
    return EXIT_OK


def _play(
    reader: ConfigReader,
    job: EvalJobConfig,
    slots: int,
    arms: Mapping[float, Sequence[EpisodeSpec]],
    directory: Path,
    deadline: Deadline,
    view: ProgressView,
) -> tuple[dict[float, Arm], dict[str, Any]]:
    """The episodes of every arm by temperature, and what was probed, for the record."""
    from vla_rl.evals.heldout import play
    from vla_rl.evals.scene import scene_facts
    from vla_rl.policy.sampler import REFERENCE

    device = prepare_torch(job.device, job.threads, job.seed)
    policy = reader.component("policy", device=device)
    sampler = reader.component("sampler", policy=policy, run_seed=job.seed)
    if getattr(sampler, "mode", None) == REFERENCE:
        raise ConfigError("reference decoding is greedy; there is nothing to probe", where="sampler.mode")
    played: dict[float, Arm] = {}
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        scene = scene_facts(policy, pool)
        reader.check_consumed()
        made_under, folder = conditions(policy, scene), open_directory(reader, directory) / FOLDER
        for temperature, specs in arms.items():
            kept = KeptEpisodes(folder / f"t{temperature:g}", made_under)
            phase = f"T {temperature:g}" if temperature else "greedy"

            def on_event(event: Event, phase: str = phase) -> None:
                if isinstance(event, PredictRound):
                    view.advance(phase, event.done, event.total, "episodes")

            deadline.check()
            played[temperature] = play(
                sampler=sampler,
                pool=pool,
                specs=specs,
                temperature=temperature,
                slots=slots,
                finished=kept.episodes,
                on_episode=lambda episode, kept=kept: kept.keep(Kept(episode, made_under)),
                on_event=deadline.watching(on_event),
            )
    checkpoint = reader.tree["policy"].get("checkpoint")
    name = {"name": checkpoint, "digest": made_under["policy_digest"], "run_seed": job.seed}
    places = {key: scene.get(key) for key in ("protocol", "scene_hash", "training_scene_match")}
    return played, {"policy": name, **places, "score": reader.tree["reward"]}


def _judge(played: Mapping[float, Arm], scores: Mapping[float, Scores], rule: Rule) -> dict[str, Any]:
    """The reads of every arm and the decision."""
    anchor, anchor_scores = played[GREEDY], scores[GREEDY]
    greedy = read_greedy(anchor, anchor_scores)
    reads = [
        read_temperature(t, arm, scores[t], greedy=anchor, greedy_scores=anchor_scores, rule=rule)
        for t, arm in played.items()
        if t != GREEDY
    ]
    return {"rule": asdict(rule), "greedy": greedy, "temperatures": reads, "decision": decide(greedy, reads, rule)}


def _write(
    directory: Path, record: Mapping[str, Any], played: Mapping[float, Arm], scores: Mapping[float, Scores]
) -> None:
    """The record, a row an episode, and then nothing that was kept for going on."""
    (directory / EPISODES).unlink(missing_ok=True)  # of a launch that was killed here
    append_jsonl(directory / EPISODES, (_row(t, e, scores[t][e.spec]) for t, arm in played.items() for e in arm))
    write_atomic(directory / RECORD, dump_json(record, indent=1).encode())
    discard_kept(directory)


def _row(temperature: float, episode: Episode, score: float | None) -> dict[str, Any]:
    own = {"temperature": temperature, "seed": episode.spec.seed, "draw": episode.spec.draw, "score": score}
    return {**own, **facts(episode)}
