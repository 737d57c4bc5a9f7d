"""A step that is played in several parts does the work of each part once."""

from __future__ import annotations

import pytest
from test_trainer import REFILLED, Killed, evidence, finish, read
from toy_run import toy_trainer

from vla_rl.config.schema import LossConfig
from vla_rl.rl import events, pricing
from vla_rl.rollout import store

COSTLY = {"geometry": REFILLED, "loss": LossConfig(kl_beta=0.5, kl_in="reward", kl_estimator="k1")}


def test_refills_neither_score_nor_read_nor_hash_again_what_the_step_has(tmp_path, monkeypatch):
    scored, read_of, hashed = [], [], []
    real_cost, real_read = pricing.kl_cost_cm, store.read_wave

    def kl_cost_cm(policy, anchor, rows, **how):
        scored.extend((row.spec, row.replan) for row in rows)
        return real_cost(policy, anchor, rows, **how)

    def read_wave(directory):
        read_of.append(directory.name)
        return real_read(directory)

    monkeypatch.setattr(pricing, "kl_cost_cm", kl_cost_cm)
    monkeypatch.setattr(store, "read_wave", read_wave)
    trainer = toy_trainer(tmp_path / "run", **COSTLY)
    digest = trainer.policy.digest

    def told(event):
        if isinstance(event, events.WaveStarted):
            hashed.append(event.step)

    trainer.on_event = told
    trainer.policy.digest = lambda: hashed.append("digest") or digest()
    finish(trainer)
    rows = read(tmp_path / "run", "train.jsonl")
    assert sum(row["groups_refilled"] for row in rows) > 0
    replans = [row["replans"] for row in read(tmp_path / "run", "episodes.jsonl") if row["phase"] == "train"]
    assert len(scored) == len(set(scored)) == sum(replans)
    assert read_of == ["step_0001", "step_0002", "step_0003"]
    parts = "".join("d" if entry == "digest" else "w" for entry in hashed)
    assert "ww" in parts  # a refill follows the first part without a digest in between


# Of the base; before the first wave; at 3 or 2 saves; and before waves that an evaluation or no save precedes.
@pytest.mark.parametrize(("every", "evaluate_at", "times"), [(1, (), 5), (1, (1,), 6), (2, (), 5)])
def test_weights_are_hashed_once_between_two_updates_and_again_after_an_evaluation(tmp_path, every, evaluate_at, times):
    trainer = toy_trainer(tmp_path / "run", every=every, evaluate_at=evaluate_at, keep_rows=True)
    digest, hashed = trainer.policy.digest, []
    trainer.policy.digest = lambda: hashed.append(digest()) or hashed[-1]
    finish(trainer)
    assert len(hashed) == times
    waves = [store.read_wave(store.wave_dir(tmp_path / "run", step)) for step in (1, 2, 3)]
    sampled_by = [wave[0][1][0].policy_digest for wave in waves]
    assert sampled_by == list(dict.fromkeys(hashed))[:3]


@pytest.mark.slow
def test_with_a_kl_cost_in_the_reward_a_kill_between_two_parts_changes_nothing(tmp_path):
    finish(toy_trainer(tmp_path / "whole", **COSTLY))
    parts = []

    def die_at_the_second_part(event):
        parts.extend([event.step] if isinstance(event, events.WaveStarted) else [])
        if len(parts) > len(set(parts)):
            raise Killed

    with pytest.raises(Killed):
        finish(toy_trainer(tmp_path / "run", on_event=die_at_the_second_part, **COSTLY))
    finish(toy_trainer(tmp_path / "run", **COSTLY))
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")
