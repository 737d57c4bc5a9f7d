"""How much of a wave's policy gradient is signal: do gradients of independent waves under the same weights agree?

Run with ``python benchmarks/gradient_signal.py RUN`` on a training run that kept its rows and did not move:

    vla-rl train experiment=quickstart geometry=documented geometry.temperature=0.4 optim.lr=1e-12 run.steps=4 \
        checkpoint.keep_rows=true loss.kl_rows=0 eval.seeds=300 run.dir=RUN

Every stored wave gives a gradient under the run's own loss. Their mean cosine over pairs of waves is the share of a
gradient's squared length that the next wave would repeat: the rest is chance. The second figure asks the same question
of one direction only, that of being surer: the correlation over episodes of the advantage with the mean of
log-probability plus entropy a token, which is 0 on average where sampling luck does not matter. Standard errors are
those of pairs and episodes as if they were independent. Recorded: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch

from vla_rl.config.build import build
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import GeometryConfig, LossConfig, OptimConfig
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl.lessons import Lesson, micro_batches, select_lessons
from vla_rl.rl.rundir import EPISODES, stored_config
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.update import Fixed, accumulate_gradient
from vla_rl.rollout.jsonl import read_jsonl
from vla_rl.rollout.store import read_wave, wave_dir

Key = tuple[int, int, int]


def advantages(run: Path) -> dict[Key, float]:
    """By step, seed and draw, of the episodes that teach."""
    rows = (row for row in read_jsonl(run / EPISODES) if row["phase"] == "train" and row["advantage"] is not None)
    return {(row["step"], row["seed"], row["draw"]): row["advantage"] for row in rows}


def main() -> None:
    """Print norms, the mean cosine, and the correlation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    reader = ConfigReader(stored_config(run))
    policy = build(reader.component_spec("policy"), {"device": "cpu"}, plugins=reader.plugins, where="policy")
    surface = reader.component("surface", run_seed=reader.value("run.seed"))
    leaves = [leaf_of(parameter) for _, parameter in surface.trainable(policy)]
    loss = reader.section("loss", LossConfig)
    settings = UpdateSettings.of(loss, reader.section("optim", OptimConfig))
    temperature = reader.section("geometry", GeometryConfig).temperature
    known, gradients, told = advantages(run), [], []
    for step in sorted({step for step, _, _ in known}):
        wave = read_wave(wave_dir(run, step))
        scored = {e.spec: known[key] for e, _ in wave if (key := (step, e.spec.seed, e.spec.draw)) in known}
        lessons, divisor = select_lessons(
            [row for _, rows in wave for row in rows], scored,
            weighting=settings.weighting, episode_tokens=settings.episode_tokens, idle_rows=False,
        )  # fmt: skip
        for leaf in leaves:
            leaf.grad = None
        accumulate_gradient(policy, lessons, divisor, settings, temperature, Fixed(None, None))
        moved = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in leaves]
        gradients.append(torch.cat(moved).double().numpy())
        told += surprises(policy, lessons, settings, temperature)
        print(f"wave {step}: {len(lessons)} rows, norm {np.linalg.norm(gradients[-1]):.3f}", flush=True)
    pairs = [cosine(a, b) for a, b in itertools.combinations(gradients, 2)]
    print(f"cosine of two waves: {np.mean(pairs):+.4f} +- {np.std(pairs) / len(pairs) ** 0.5:.4f} ({len(pairs)} pairs)")
    advantage, sure = np.array(told).T
    found = np.corrcoef(advantage, sure)[0, 1]
    print(f"advantage and luck of sampling: {found:+.3f} +- {len(told) ** -0.5:.3f} ({len(told)} episodes)")


def surprises(policy, lessons: list[Lesson], settings: UpdateSettings, temperature: float) -> list[tuple[float, float]]:
    """Advantage and mean log-probability plus entropy a token, of each episode."""
    sums: dict[object, list[float]] = {}
    for part in micro_batches([len(lesson.row.bins) for lesson in lessons], settings.limits, policy.prompt.length):
        batch = lessons[part]
        with torch.no_grad():
            seen = [Observation(lesson.row.frames, lesson.row.state_deg) for lesson in batch]
            scores = score_rows(policy, seen, [lesson.row.bins for lesson in batch], temperature)
        for index, lesson in enumerate(batch):
            mask_T = scores.mask_RT[index]
            excess = float((scores.logp_RT[index] + scores.entropy_RT[index])[mask_T].sum())
            entry = sums.setdefault(lesson.row.spec, [lesson.advantage, 0.0, 0.0])
            entry[1], entry[2] = entry[1] + excess, entry[2] + int(mask_T.sum())
    return [(advantage, excess / tokens) for advantage, excess, tokens in sums.values()]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the angle between two gradients."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


if __name__ == "__main__":
    main()
