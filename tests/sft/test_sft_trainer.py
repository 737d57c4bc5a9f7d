"""Training: a killed run ends in the same weights, and a few real demonstrations can be learned by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.sft.checkpoint import FILE_BYTES, checkpoints, load_checkpoint, save_checkpoint
from vla_rl.sft.dataset import Demonstrations, training_rows
from vla_rl.sft.events import PolicySaved, SftLogged, SftStopped
from vla_rl.sft.trainer import SftTrainer


class Killed(Exception):
    """Stands for the end of the process at this instant."""


def trainer(twin: VlaPolicy, demos: Demonstrations, run_dir: Path, **changes: Any) -> SftTrainer:
    settings: dict[str, Any] = dict(
        seed=0, steps=6, batch_rows=4, lr=2e-3, warmup_steps=2, beta1=0.9, beta2=0.95, weight_decay=0.05, grad_clip=1.0,
        shift_px=3, state_jitter_bins=2, save_at=[], log_every=2, checkpoint_every_s=1e9, compile=False,
        max_wall_s=None, on_event=lambda event: None,
    )  # fmt: skip
    run_dir.mkdir(parents=True, exist_ok=True)
    rows = training_rows(demos, twin.stats, twin.codec, torch.device("cpu"), scratch=run_dir, threads=1)
    return SftTrainer(policy=twin, rows=rows, run_dir=run_dir, **(settings | changes))


def log_rows(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "sft.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("wall_s", "rows_per_s")} for row in rows]


def test_a_killed_run_ends_in_the_same_weights_and_log(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    trainer(twin, demos, tmp_path / "whole").run()
    expected, final = twin.weights_digest(), log_rows(tmp_path / "whole")
    twin.model.load_state_dict(start)

    def kill(event: object) -> None:
        if isinstance(event, SftLogged) and event.step == 4:
            raise Killed

    with pytest.raises(Killed):  # the resume point of step 3 is the last one; the log already holds step 4
        trainer(twin, demos, tmp_path / "broken", checkpoint_every_s=0.0, on_event=kill).run()
    assert [path.name for path in checkpoints(tmp_path / "broken")] == ["checkpoint_000003"]
    twin.model.load_state_dict(start)
    result = trainer(twin, demos, tmp_path / "broken").run()
    assert result.complete and twin.weights_digest() == expected
    assert log_rows(tmp_path / "broken") == final


def test_the_wall_limit_stops_with_a_resume_point(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    events: list[object] = []
    result = trainer(twin, demos, tmp_path, max_wall_s=0.0, on_event=events.append).run()
    assert (result.step, result.complete, result.policy_dir) == (0, False, None)
    assert events == [SftStopped(0, 6, str(tmp_path))]
    result = trainer(twin, demos, tmp_path, on_event=events.append).run()
    assert result.complete and (tmp_path / "policy" / "model.safetensors").is_file()


def test_a_run_is_not_continued_with_other_settings(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    trainer(twin, demos, tmp_path, max_wall_s=0.0).run()
    with pytest.raises(UsageError, match="another lr, shift_px"):
        trainer(twin, demos, tmp_path, lr=1e-3, shift_px=2).run()


def test_saved_policies_are_those_of_their_step(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    digests: dict[int, str] = {}

    def note(event: object) -> None:
        if isinstance(event, PolicySaved):
            digests[event.step] = twin.weights_digest()

    trainer(twin, demos, tmp_path, save_at=[2], on_event=note).run()
    assert len(set(digests.values())) == 2
    for step, name in ((2, "policy_step_000002"), (6, "policy")):
        loaded = load_policy(checkpoint=str(tmp_path / name), device="cpu", serve_head="ar", task=twin.task)
        assert loaded.weights_digest() == digests[step]
        assert all(weight.dtype == torch.float32 for weight in loaded.model.state_dict().values())


def test_weight_decay_is_on_matrices_only(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    groups = trainer(twin, demos, tmp_path).optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    assert all(p.ndim >= 2 for p in groups[0]["params"]) and all(p.ndim == 1 for p in groups[1]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(twin.model.parameters()))


def test_a_save_step_outside_the_run_is_refused(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="save_at|step 7"):
        trainer(twin, demos, tmp_path, save_at=[7])


def test_a_few_demonstrations_are_learned_by_heart(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    events: list[object] = []
    trainer(
        twin, demos, tmp_path, steps=60, batch_rows=16, lr=4e-3, warmup_steps=5, shift_px=1, state_jitter_bins=1,
        log_every=10, on_event=events.append,
    ).run()  # fmt: skip
    losses = [event.loss for event in events if isinstance(event, SftLogged)]
    assert losses[0] > 4.0 and losses[-1] < 0.5 * losses[0]
    assert all(np.isfinite(losses))


def test_checkpoint_files_stay_below_the_cap_and_damage_is_noticed(tmp_path: Path) -> None:
    tensors = {f"weight/{i}": torch.full((1024, 1024), float(i)) for i in range(9)}  # 4 MiB each
    path = save_checkpoint(tmp_path, 3, tensors, {"seed": 1})
    assert max(file.stat().st_size for file in path.iterdir()) < FILE_BYTES + 2**16
    loaded, state = load_checkpoint(path)
    assert state["step"] == 3 and all(torch.equal(loaded[name], value) for name, value in tensors.items())
    part = path / "tensors_01.safetensors"
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(IntegrityError):
        load_checkpoint(path)
