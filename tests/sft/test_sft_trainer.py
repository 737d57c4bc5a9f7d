"""Training: a killed run ends in the same weights, and a few real demonstrations can be learned by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vla_rl.config.schema import TwinConfig
from vla_rl.errors import UsageError
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.policy import VlaPolicy, load_policy, new_twin
from vla_rl.rl import checkpoint as ckpt
from vla_rl.sft.average import WeightAverage
from vla_rl.sft.dataset import Demonstrations, training_rows
from vla_rl.sft.events import PolicySaved, SftEvaluated, SftLogged, SftStopped
from vla_rl.sft.trainer import SftTrainer


class Killed(Exception):
    """Stands for the end of the process at this instant."""


def trainer(twin: VlaPolicy, demos: Demonstrations, run_dir: Path, **changes: Any) -> SftTrainer:
    settings: dict[str, Any] = dict(
        seed=0, steps=6, batch_rows=4, lr=2e-3, warmup_steps=2, beta1=0.9, beta2=0.95, weight_decay=0.05, grad_clip=1.0,
        shift_px=3, state_jitter_bins=2, ema=0.0, precision="auto", save_at=[], eval_every=0,
        log_every=2, checkpoint_every_s=1e9, compile=False,
        max_wall_s=None, on_event=lambda event: None,
    )  # fmt: skip
    run_dir.mkdir(parents=True, exist_ok=True)
    rows = training_rows(demos, twin.stats, twin.codec, torch.device("cpu"), scratch=run_dir, threads=1)
    return SftTrainer(policy=twin, rows=rows, run_dir=run_dir, **(settings | changes))


def log_rows(run_dir: Path, name: str = "sft.jsonl") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("wall_s", "rows_per_s")} for row in rows]


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_killed_run_ends_in_the_same_weights_log_and_evaluations(
    demos: Demonstrations, twin: VlaPolicy, tmp_path: Path, ema: float
) -> None:
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    settings: dict[str, Any] = dict(ema=ema, eval_every=2, evaluate=lambda step: {"digest": twin.digest()})
    trainer(twin, demos, tmp_path / "whole", **settings).run()
    expected, whole = twin.digest(), tmp_path / "whole"
    assert [row["step"] for row in log_rows(whole, "eval.jsonl")] == [0, 2, 4, 6]
    twin.model.load_state_dict(start)

    def kill(event: object) -> None:
        if isinstance(event, SftEvaluated) and event.step == 4:
            raise Killed

    broken = tmp_path / "broken"
    with pytest.raises(Killed):  # the resume point of step 3 or 4 is the last one; log and evaluation of 4 are written
        trainer(twin, demos, broken, checkpoint_every_s=0.0, on_event=kill, **settings).run()
    assert len(ckpt.checkpoints(broken / "resume")) == 1
    twin.model.load_state_dict(start)
    result = trainer(twin, demos, broken, **settings).run()
    assert result.complete and twin.digest() == expected
    assert log_rows(broken) == log_rows(whole) and log_rows(broken, "eval.jsonl") == log_rows(whole, "eval.jsonl")
    first, second = (load_policy(checkpoint=str(d / "policy"), device="cpu", serve_head="ar", task=twin.task)
                     for d in (whole, broken))  # fmt: skip
    assert first.digest() == second.digest() == log_rows(whole, "eval.jsonl")[-1]["digest"]
    assert (first.digest() == expected) == (ema == 0.0)


def test_evaluations_change_nothing_and_an_open_one_is_made_up_for_after_a_stop(
    demos: Demonstrations, twin: VlaPolicy, tmp_path: Path
) -> None:
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    trainer(twin, demos, tmp_path / "plain", ema=0.5).run()
    expected = twin.digest()
    twin.model.load_state_dict(start)
    asked: list[int] = []
    settings: dict[str, Any] = dict(ema=0.5, eval_every=4, evaluate=lambda step: asked.append(step) or {})
    stopping = trainer(twin, demos, tmp_path / "run", max_wall_s=1e9, **settings)

    def stop(event: object) -> None:
        if isinstance(event, SftLogged) and event.step == 6:
            stopping.max_wall_s = -1.0

    stopping.on_event = stop
    result = stopping.run()
    assert (result.step, result.complete, asked) == (6, False, [0, 4])
    assert trainer(twin, demos, tmp_path / "run", **settings).run().complete
    assert asked == [0, 4, 6] and twin.digest() == expected
    with pytest.raises(UsageError, match="nothing to evaluate with"):
        trainer(twin, demos, tmp_path / "none", eval_every=4)


def test_the_average_follows_its_formula_and_is_stored_without_loss() -> None:
    weight = torch.tensor([[1.0, -2.0]])
    average = WeightAverage({"w": weight}, 0.25)
    for step, value in enumerate((2.0, 4.0, 8.0)):
        weight.fill_(value)
        average.update(step)
    # decays 1/10, 2/11, 3/12 = 0.25 at most: 1 -> 1.9 -> 3.618182 -> 6.904545; -2 -> 1.6 -> 3.563636 -> 6.890909
    with average.in_place():
        assert torch.allclose(weight, torch.tensor([[6.904545, 6.890909]]), atol=1e-5)
        held = weight.clone()
    assert weight.tolist() == [[8.0, 8.0]]
    again = WeightAverage({"w": weight}, 0.25)
    again.restore(average.packed())
    with again.in_place():
        assert torch.equal(weight, held)
    assert WeightAverage({"w": weight}, 0.0).packed() == {}


def test_precision_is_explicit_and_weights_stay_in_float32(
    demos: Demonstrations, twin: VlaPolicy, tmp_path: Path
) -> None:
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    digests = {}
    for precision in ("auto", "float32", "bfloat16"):
        twin.model.load_state_dict(start)
        trainer(twin, demos, tmp_path / precision, precision=precision, steps=2).run()
        digests[precision] = twin.digest()
        assert all(p.dtype == torch.float32 for p in twin.model.parameters())
    assert digests["auto"] == digests["float32"] != digests["bfloat16"]
    trainer(twin, demos, tmp_path / "x", precision="bfloat16", max_wall_s=0.0).run()
    with pytest.raises(UsageError, match="another mixed precision"):
        trainer(twin, demos, tmp_path / "x", precision="float32").run()


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
            digests[event.step] = twin.digest()

    trainer(twin, demos, tmp_path, save_at=[2], on_event=note).run()
    assert len(set(digests.values())) == 2
    for step, name in ((2, "policy_step_000002"), (6, "policy")):
        loaded = load_policy(checkpoint=str(tmp_path / name), device="cpu", serve_head="ar", task=twin.task)
        assert loaded.digest() == digests[step]
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


def test_policy_and_resume_state_of_the_tiny_policy_stay_below_the_caps(twin: VlaPolicy, tmp_path: Path) -> None:
    """Its real size, moments and average included: files of at most 16 MiB, at most 64 MiB together."""
    architecture = TwinArchitecture.of(TwinConfig(), image_px=112)
    policy = new_twin(codec=twin.codec, stats=twin.stats, task=twin.task, seed=0, architecture=architecture)
    parameters = dict(policy.model.named_parameters())
    assert 4e6 < sum(p.numel() for p in parameters.values()) < 5e6
    optimizer, average = torch.optim.AdamW(parameters.values(), lr=8e-4), WeightAverage(parameters, 0.999)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        average.update(step)
    path = ckpt.save_checkpoint(
        tmp_path, 3, list(parameters.items()), optimizer, {}, extra={"average": average.packed()}
    )
    policy.save(tmp_path / "policy")
    for directory, whole in ((path, 64), (tmp_path / "policy", 20)):
        sizes = [file.stat().st_size for file in directory.rglob("*") if file.is_file()]
        assert max(sizes) <= 16 * 2**20 and sum(sizes) <= whole * 2**20
    assert len(list((tmp_path / "policy").glob("model-*.safetensors"))) == 2
    loaded = load_policy(checkpoint=str(tmp_path / "policy"), device="cpu", serve_head="ar", task=policy.task)
    assert loaded.digest() == policy.digest()
