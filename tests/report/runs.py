"""Run folders for the tests of reports: rows in the form that the trainer writes, with numbers that one can check."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

SCENE = {"protocol": "sim100b", "scene_hash": "ab" * 32, "max_replans": 15, "training_scene_match": "same"}
RINGS = ("6-8", "8-9", "9-10")


def step(number, **changed):
    row = {
        "step": number, "episodes": 8, "successes": min(number, 8), "reward_mean": float(number),
        "median_group_std_cm": 2.0, "groups_total": 2, "groups_kept": 2, "mixed_groups_frac": 0.5,
        "success_advantage_share": 0.9, "mean_ratio": 1.0, "min_ratio": 0.9, "max_ratio": 1.1, "clip_fraction": 0.0,
        "approx_kl": 0.0, "anchor_kl": 0.01 * number, "update_kl": 0.001, "rolled_back": False, "step_skipped": False,
        "grad_norm": 1.5, "chosen_nll": 0.9, "entropy": 1.0, "rollout_s": 10.0, "update_s": 3.0,
        "eval_s": 2.0 if number == 1 else None, "save_s": 0.5, "env_steps_per_s": 900.0, "vram_gib": None,
        "gpu_h_total": 0.01 * number, "tripwires": [],
    }  # fmt: skip
    return {**row, **changed}


def episode(seed, success, *, at=None, phase="eval", **changed):
    progress = 8.0 if success else 1.0
    row = {
        "phase": phase, "step": at, "seed": seed, "draw": 0, "reward": progress + 10.0 * success,
        "reward_progress": progress, "reward_success": 10.0 * success, "reward_tip": 0.0, "reward_strike": 0.0,
        "success": success, "success_test": "success_strict", "success_strict": success, "touched": True,
        "pinched": True, "lifted": success, "tipped": False, "knockaway": False,
        "reach_bin": RINGS[seed % len(RINGS)], "progress_final_cm": progress,
    }  # fmt: skip
    return {**row, **changed}


def evaluation(at, episodes, **changed):
    k, n = sum(e["success"] for e in episodes), len(episodes)
    row = {
        "step": at, "episodes": n, "trials": n, "successes": k, "success_test": "success_strict", "touched": n,
        "pinched": n, "lifted": k, "tipped": 0, "knockaways": 0, "reward_mean": 5.0, "temperature": 0.0,
        "tripwires": [],
    }  # fmt: skip
    return {**row, **SCENE, **changed}


def manifest(**changed):
    launch = {
        "utc": "2026-11-30T10:00:00+00:00", "argv": ["train", "experiment=quickstart"], "git": {"commit": "c0ffee"},
        "packages": {"torch": "2.13.0"}, "host": {"system": "Linux", "machine": "x86_64"}, "scene": SCENE,
        "config_digest": "0" * 64, "registered": None,
    }  # fmt: skip
    return {"launches": [{**launch, **changed}]}


def write_run(directory: Path, *, steps=6, before=(1, 0, 0, 0), after=(1, 1, 1, 0), **files) -> Path:
    """A run of `steps` steps that was evaluated before and after; `files` replace what would be written."""
    directory.mkdir(parents=True)
    held = [(0, before), (steps, after)]
    told = {at: [episode(300 + i, bool(won), at=at) for i, won in enumerate(wins)] for at, wins in held if wins}
    waves = [episode(200_000 + i, i < 2, at=number, phase="train") for number in range(1, steps + 1) for i in range(8)]
    config = {"run": {"name": "boat", "steps": steps, "seed": 3}, "eval": {"seeds": "300-303"}, "optim": {"lr": 0.5}}
    content = {
        "config": json.dumps(config),
        "manifest": json.dumps(manifest()),
        "train": lines(step(number) for number in range(1, steps + 1)),
        "eval": lines(evaluation(at, rows) for at, rows in told.items()),
        "episodes": lines([*(row for rows in told.values() for row in rows), *waves]),
        **files,
    }
    names = {"config": "config.yaml", "manifest": "manifest.json"}
    for name, text in content.items():
        if text is not None:
            (directory / names.get(name, f"{name}.jsonl")).write_text(text)
    return directory


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


class Seen(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(data.decode())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
