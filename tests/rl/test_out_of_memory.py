"""An update, tried or dry, that does not fit into the device's memory: half the micro-batch once, then an error."""

from __future__ import annotations

import pytest
import torch
from guarded_run import trainer_of, wave
from test_trainer import evidence, finish, read

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.errors import EXIT_CRASH, OutOfMemory
from vla_rl.policy import logprob
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl import update as update_module


def fail_scoring(monkeypatch, fails):
    """Let the forward pass of an update run out of memory whenever `fails(rows of the batch)`."""
    real, sizes = logprob.score_rows, []

    def score_rows(policy, observations, bins, temperature):
        sizes.append(len(bins))
        if fails(sizes):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(policy, observations, bins, temperature)

    monkeypatch.setattr(update_module, "score_rows", score_rows)
    return sizes


@pytest.mark.parametrize("epochs", [1, 2])
def test_out_of_memory_once_the_step_is_repeated_in_halved_micro_batches_with_the_same_gradient(
    tmp_path, monkeypatch, epochs
):
    loss = LossConfig(epochs=epochs)
    finish(trainer_of(tmp_path / "plain", loss=loss))
    sizes = fail_scoring(monkeypatch, lambda sizes: len(sizes) == 2)
    assert finish(trainer_of(tmp_path / "run", loss=loss)).finished
    rows, plain_rows = read(tmp_path / "run", "train.jsonl"), read(tmp_path / "plain", "train.jsonl")
    assert [row["oom_retries"] for row in rows] == [1, 0, 0] and sizes[:4] == [1, 4, 2, 2]  # 1: the dry update
    assert rows[0]["grad_norm"] == pytest.approx(plain_rows[0]["grad_norm"], rel=1e-4)
    assert rows[0]["rows"] == plain_rows[0]["rows"] and rows[0]["loss"] == pytest.approx(
        plain_rows[0]["loss"], abs=1e-5
    )


def test_out_of_memory_always_the_run_crashes_with_its_wave_kept_and_ends_the_same_when_there_is_room(
    plain, tmp_path, monkeypatch
):
    path = tmp_path / "run"
    with monkeypatch.context() as cramped:
        fail_scoring(cramped, lambda sizes: len(sizes) > 1)
        trainer = trainer_of(path)
        with pytest.raises(OutOfMemory) as crashed:
            finish(trainer)
    assert crashed.value.exit_code == EXIT_CRASH and "run.resume" in str(crashed.value)
    assert all(leaf_of(parameter).grad is None for _, parameter in trainer.parameters)
    assert len(wave(path, 1)) == 6 and not (path / "train.jsonl").exists()
    assert finish(trainer_of(path)).finished
    assert evidence(path) == evidence(plain[0])


def test_out_of_memory_with_single_rows_there_is_nothing_to_halve(tmp_path, monkeypatch):
    sizes = fail_scoring(monkeypatch, lambda sizes: len(sizes) == 2)
    with pytest.raises(OutOfMemory):
        finish(trainer_of(tmp_path / "run", optim=OptimConfig(lr=3e-3, microbatch_rows=1)))
    assert len(sizes) == 2


def test_a_dry_update_that_does_not_fit_is_tried_in_halved_micro_batches_and_leaves_nothing_behind(
    plain, tmp_path, monkeypatch
):
    with monkeypatch.context() as tight:
        sizes = fail_scoring(tight, lambda sizes: len(sizes) == 1)
        assert finish(trainer_of(tmp_path / "tight")).finished and len(sizes) > 2
    assert evidence(tmp_path / "tight") == evidence(plain[0])
    with monkeypatch.context() as cramped:
        sizes = fail_scoring(cramped, lambda sizes: True)
        trainer = trainer_of(tmp_path / "run")
        before = trainer.policy.digest()
        with pytest.raises(OutOfMemory, match="longest possible rows") as crashed:
            finish(trainer)
    assert crashed.value.exit_code == EXIT_CRASH and sizes == [1, 1] and not (tmp_path / "run" / "eval.jsonl").exists()
    assert trainer.policy.digest() == before and not trainer.optimizer.state
    assert all(leaf_of(parameter).grad is None for _, parameter in trainer.parameters)
    assert finish(trainer_of(tmp_path / "run")).finished
    assert evidence(tmp_path / "run") == evidence(plain[0])
