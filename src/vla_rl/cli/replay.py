"""`vla-rl replay`: is a stored wave what its policy would have sampled; or what it would have taught under another
price."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.options import command_parser, print_json
from vla_rl.config.onto import compose_onto
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import GeometryConfig, OptimConfig, RunConfig
from vla_rl.errors import EXIT_INTEGRITY, EXIT_OK, UsageError
from vla_rl.report.progress import ProgressView
from vla_rl.rl.plan import Geometry
from vla_rl.rl.rundir import EPISODES, recorded_base, stored_config
from vla_rl.rollout import store
from vla_rl.rollout.jsonl import read_jsonl
from vla_rl.rollout.records import EpisodeSpec

if TYPE_CHECKING:
    from vla_rl.rl.checkpoint import Checkpoint

EXAMPLES = (
    "vla-rl replay outputs/run/20260101T120000Z-1a2b",
    "vla-rl replay outputs/run/20260101T120000Z-1a2b --step 3 --json",
    "vla-rl replay outputs/run/20260101T120000Z-1a2b --advantages reward=v2 geometry.advantage_clip=2",
)
# They decide which episodes were played, which no price can change, or how an episode's advantage is spread over it.
FIXED = tuple(
    f"geometry.{name}"
    for name in ("seeds", "draws", "temperature", "train_seed_base", "refill", "credit", "shuffle_advantages")
)


def run(argv: Sequence[str]) -> int:
    """Replay, and print tables or, with --json, the report; exit code 5 if a stored row is not what it must be."""
    parser = command_parser(
        "replay", "Re-score the stored rows of a wave, or re-price stored episodes without a policy.", EXAMPLES
    )
    parser.add_argument("run", type=Path, help="directory of a train run")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="with --advantages: of reward and geometry")
    parser.add_argument("--step", type=int, help="which wave (default: the newest stored; with --advantages: all)")
    parser.add_argument("--advantages", action="store_true", help="price the run's episodes again; no policy is loaded")
    parser.add_argument("--base", help="where the run's base policy is now (default: where it was)")
    options = parser.parse_intermixed_args(list(argv))
    wrong = options.base if options.advantages else " ".join(options.overrides)
    if wrong:
        raise UsageError(f"{wrong} does not go with this kind of replay", where="command line", remedy="see --help")
    from vla_rl.report import replay as tables

    tree = stored_config(options.run)
    with ProgressView() as view:
        if options.advantages:
            report = _advantages(options, tree)
            sound, shown = not report["departures"], tables.advantages(report)
        else:
            report = _wave(options, ConfigReader(tree))
            sound, shown = report["sound"], tables.wave(report)
        if options.json:
            print_json(report)
        else:
            view.show(shown)
    return EXIT_OK if sound else EXIT_INTEGRITY


def _advantages(options: argparse.Namespace, tree: dict[str, Any]) -> dict[str, Any]:
    """The ledgers of the run's own price and, with overrides, of the other."""
    from vla_rl.rl.reprice import compare_prices, departures, ledger, price

    rows = _episodes(options.run, options.step)
    own = ConfigReader(tree)
    geometry = Geometry.of(own.section("geometry", GeometryConfig))
    used = price(rows, own.component("reward"), geometry.rule)
    report: dict[str, Any] = {
        "run": str(options.run),
        "steps": sorted({row["step"] for row in rows}),
        "used": {"reward": tree["reward"], "geometry": tree["geometry"], **ledger(used)},
        "departures": departures(
            rows, used, (lambda step: (geometry.train_seed_base, step)) if geometry.shuffle_advantages else None
        ),
        "repriced": None,
        "against": None,
    }
    if options.overrides:
        new = compose_onto("config", tree, options.overrides, ("reward", "geometry"), fixed=FIXED)
        other = price(rows, new.component("reward"), Geometry.of(new.section("geometry", GeometryConfig)).rule)
        report["repriced"] = {"reward": new.tree["reward"], "geometry": new.tree["geometry"], **ledger(other)}
        report["against"] = compare_prices(used, other)
    return report


def _episodes(run: Path, step: int | None) -> list[dict[str, Any]]:
    """Training episodes on record; of a wave under way those that are stored, in whole groups."""
    rows = [row for row in read_jsonl(run / EPISODES) if row["phase"] == "train" and step in (None, row["step"])]
    recorded = {row["step"] for row in rows}
    draws = stored_config(run)["geometry"]["draws"]
    for wave, directory in store.stored_waves(run).items():
        if wave in recorded or step not in (None, wave):
            continue
        episodes = [store.read_metrics(path) for path in sorted(directory.glob(store.EPISODES))]
        played = [episode.spec.seed for episode in episodes]
        rows += [
            {**e.metrics, "step": wave, "seed": e.spec.seed, "draw": e.spec.draw}
            for e in episodes
            if played.count(e.spec.seed) == draws
        ]
    if not rows:
        told = "" if step is None else f" of step {step}"
        raise UsageError(f"the run has no finished episodes{told}", where=str(run), remedy="let it play some first")
    return rows


def _wave(options: argparse.Namespace, reader: ConfigReader) -> dict[str, Any]:
    """Masks, records and log-probabilities of one stored wave."""
    waves = store.stored_waves(options.run)
    step = options.step if options.step is not None else max(waves, default=0)
    if step not in waves:
        raise UsageError(
            "the run has no stored rows" + (f" of step {step}" if step else ""),
            where=str(options.run / "waves"),
            remedy=f"stored are the steps {', '.join(map(str, waves))}"
            if waves
            else "train with checkpoint.keep_rows=true",
        )
    from vla_rl.cli.startup import prepare_torch
    from vla_rl.config.build import build
    from vla_rl.evals.integrity import check_masks, check_records, rescore, scorable
    from vla_rl.rl.lessons import BatchLimits
    from vla_rl.rl.trained import base_of, base_spec, put_weights

    settings, optim = reader.section("run", RunConfig), reader.section("optim", OptimConfig)
    geometry = Geometry.of(reader.section("geometry", GeometryConfig))
    stored, wanted = store.read_wave(waves[step]), geometry.specs(step)
    node = base_spec(reader, options.base)
    device = prepare_torch(settings.device, settings.threads, settings.seed)
    with base_of(None if options.base else options.run):
        policy = build(node, {"device": device}, plugins=reader.plugins, where="policy")
    source, digest, checkpoint = _sampled_by(options.run, step)
    masks, records = check_masks(stored, policy.grammar), check_records(stored, settings.seed)
    refused: list[str] = []
    logp = None
    if digest is not None:
        put_weights(policy, recorded_base(options.run), checkpoint)
        rows, refused = scorable(stored, digest, [*masks["mismatched"], *records])
        limits = BatchLimits(optim.microbatch_rows, optim.microbatch_tokens)
        logp = rescore(policy, rows, temperature=geometry.temperature, limits=limits)
    missing = sorted(set(wanted) - {episode.spec for episode, _ in stored}, key=_order)
    return {
        "run": str(options.run),
        "step": step,
        "sound": not (masks["mismatched"] or records or refused),
        "episodes": len(stored),
        "episodes_missing": [spec.episode_id for spec in missing],
        "policy": {"source": source, "digest": digest},
        "masks": masks,
        "records": records,
        "refused": refused,
        "logp": logp,
    }


def _sampled_by(run: Path, step: int) -> tuple[str, str | None, Checkpoint | None]:
    """Which weights the wave of a step must have been sampled with: what they are called, their digest, and their
    checkpoint; no digest if they are no longer there."""
    from vla_rl.rl.checkpoint import load_checkpoint

    if step == 1:
        return "the base policy", recorded_base(run), None
    path = run / "checkpoints" / f"step_{step - 1:04d}"
    if not path.is_dir():
        return f"checkpoint {path.name}, which is not kept", None, None
    checkpoint = load_checkpoint(path)
    return f"checkpoint {path.name}", checkpoint.state["policy_digest"], checkpoint


def _order(spec: EpisodeSpec) -> tuple[int, int]:
    return spec.seed, spec.draw
