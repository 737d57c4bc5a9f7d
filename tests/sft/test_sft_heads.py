"""Training either head or both: resumed runs, averages, what moves, what is saved and what it says of its heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from expert_support import taught
from release_support import TAG, write_release
from sft_support import SIZES, tiny_twin
from test_expert_files import weights_of
from test_sft_trainer import Killed, log_rows, trainer

from vla_rl.errors import ConfigError, UsageError
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.fast import FastCodec, HoleError, dct_matrix
from vla_rl.policy.flow_sampler import FlowSampler
from vla_rl.policy.heads import HeadState
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest
from vla_rl.rl import checkpoint as ckpt
from vla_rl.sft.dataset import Demonstrations, training_rows
from vla_rl.sft.events import SftEvaluated, SftLogged
from vla_rl.sft.transitions import Objective, Start, expert_to_train

CPU = torch.device("cpu")
OBJECTIVES = {
    "flow": Objective("flow"),
    "flow insulated": Objective("flow", insulate=True),
    "joint": Objective("joint", ce_weight=0.5),
    "joint insulated": Objective("joint", insulate=True),
}


def both(demos: Demonstrations) -> VlaPolicy:
    """A fresh twin with an expert that has drawn weights; the same every time."""
    torch.set_num_threads(1)
    twin = tiny_twin(demos)
    taught(new_expert(twin, SIZES, seed=0))
    return twin


def digests(policy: VlaPolicy) -> tuple[str, str]:
    return policy.digest("ar"), policy.digest("flow")


def loaded(directory: Path, head: str = "flow", **settings: Any) -> VlaPolicy:
    return load_policy(checkpoint=str(directory), device="cpu", serve_head=head, task="pick up the boat", **settings)


# ------------------------------------------------------------------------------------------------------- resumed runs
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_killed_run_ends_in_the_same_weights_of_both_networks(demos, tmp_path: Path, kind: str, ema: float):
    settings: dict[str, Any] = dict(objective=OBJECTIVES[kind], expert_lr=1e-3, ema=ema, eval_every=2)

    def run(directory: Path, **changes: Any) -> VlaPolicy:
        policy = both(demos)
        evaluate = lambda step: {"digest": digests(policy)}  # noqa: E731
        trainer(policy, demos, directory, evaluate=evaluate, **settings, **changes).run()
        return policy

    def kill(event: object) -> None:
        if isinstance(event, SftEvaluated) and event.step == 4:
            raise Killed

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = digests(run(whole))
    with pytest.raises(Killed):
        run(broken, checkpoint_every_s=0.0, on_event=kill)
    found = ckpt.load_checkpoint(ckpt.checkpoints(broken / "resume")[0])
    experts = [name for name in found.weights if name.startswith("action_expert.")]
    assert 0 < len(experts) == len(list(both(demos).expert.parameters()))  # type: ignore[union-attr]
    assert {f"{name}.exp_avg_sq" for name in experts} <= found.moments.keys()
    assert (len(found.weights) > len(experts)) == OBJECTIVES[kind].trains_trunk
    again = run(broken)
    assert digests(again) == expected
    assert log_rows(broken) == log_rows(whole) and log_rows(broken, "eval.jsonl") == log_rows(whole, "eval.jsonl")
    saved = [digests(loaded(directory / "policy")) for directory in (whole, broken)]
    assert saved[0] == saved[1] == tuple(log_rows(whole, "eval.jsonl")[-1]["digest"])
    assert (saved[0] == expected) == (ema == 0.0)
    assert all(one != other for one, other in zip(expected, digests(both(demos)), strict=True)) or (
        kind == "flow insulated"
    )


def test_a_run_is_not_continued_under_another_objective_or_beside_another_frozen_trunk(demos, tmp_path: Path):
    frozen = Objective("flow", insulate=True)
    trainer(both(demos), demos, tmp_path, objective=frozen, max_wall_s=0.0).run()
    for changes in ({"objective": Objective("flow")}, {"objective": frozen, "expert_lr": 1e-3}):
        with pytest.raises(UsageError, match="another (objective|expert_lr)"):
            trainer(both(demos), demos, tmp_path, **changes).run()
    moved = both(demos)
    with torch.no_grad():
        moved.model.lm_head.weight[0, 0] += 1
    with pytest.raises(UsageError, match="another trunk"):
        trainer(moved, demos, tmp_path, objective=frozen).run()


# --------------------------------------------------------------------------------------------------- what is trained
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_what_an_objective_does_not_train_keeps_its_bits_and_all_else_moves(demos, tmp_path: Path, kind: str):
    policy, objective = both(demos), OBJECTIVES[kind]
    assert policy.expert is not None
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    expert = {name: value.clone() for name, value in policy.expert.state_dict().items()}
    trainer(policy, demos, tmp_path, objective=objective, steps=2).run()
    moved = {name for name, value in policy.model.state_dict().items() if not torch.equal(value, before[name])}
    assert all(not torch.equal(value, expert[name]) for name, value in policy.expert.state_dict().items())
    last = f"language_model.layers.{policy.model.config.text_config.num_hidden_layers - 1}."
    unseen = {n for n in before if "lm_head" in n or "language_model.norm" in n or (last in n and ".mlp." in n)}
    if objective.has_tokens:
        assert moved == before.keys()
    elif objective.trains_trunk:  # by what the expert sees of it; the head and the last layer's end are not seen
        assert moved and not moved & unseen and "model.vision_tower.positional_embedding" in moved
    else:
        assert not moved


def test_each_network_has_its_own_peak_rate_and_decay_is_on_matrices_only(demos, tmp_path: Path):
    run = trainer(both(demos), demos, tmp_path, objective=OBJECTIVES["joint"], lr=2e-3, expert_lr=1e-2, steps=4)
    groups = run.optimizer.param_groups
    run.run()
    trunk, expert = (sum(p.numel() for p in n.parameters()) for n in (run.policy.model, run.policy.expert))
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0, 0.05, 0.0]
    assert [sum(p.numel() for g in groups[i : i + 2] for p in g["params"]) for i in (0, 2)] == [trunk, expert]
    assert groups[2]["lr"] == pytest.approx(5 * groups[0]["lr"]) and groups[0]["lr"] == groups[1]["lr"] < 2e-3


def test_open_one_norm_is_clipped_over_both_networks_and_insulated_each_has_its_own(demos, tmp_path: Path):
    counts = []
    for kind in ("joint", "joint insulated", "flow", "flow insulated"):
        run = trainer(both(demos), demos, tmp_path / kind.replace(" ", "_"), objective=OBJECTIVES[kind])
        counts.append([len(part) for part in run.clipped])
    trunk, expert = counts[1]
    assert counts == [[trunk + expert], [trunk, expert], [trunk + expert], [expert]]


def test_the_log_holds_the_terms_apart_and_their_sum(demos, tmp_path: Path):
    events: list[Any] = []
    for kind in ("ar", *OBJECTIVES):
        objective = OBJECTIVES.get(kind, Objective("ar"))
        directory = tmp_path / kind.replace(" ", "_")
        result = trainer(both(demos), demos, directory, objective=objective, on_event=events.append).run()
        rows = log_rows(directory)
        assert [row["step"] for row in rows] == [2, 4, 6] and result.loss == rows[-1]["loss"]
        for row in rows:
            assert (row["flow_loss"] is None) != objective.has_flow
            assert (row["token_loss"] is None) == (row["accuracy"] is None) != objective.has_tokens
            parts = (row["flow_loss"] or 0.0) + objective.ce_weight * (row["token_loss"] or 0.0)
            assert row["loss"] == pytest.approx(parts, rel=1e-6)
    assert sum(isinstance(event, SftLogged) for event in events) == 15


def test_in_mixed_precision_the_trunk_alone_is_rounded(demos, tmp_path: Path):
    seen: list[torch.dtype] = []
    for precision in ("float32", "bfloat16"):
        policy = both(demos)
        assert policy.expert is not None
        policy.expert.action_embed.register_forward_hook(lambda *call: seen.append(call[2].dtype))
        run = trainer(policy, demos, tmp_path / precision, objective=OBJECTIVES["joint"], precision=precision, steps=2)
        result = run.run()
        assert result.loss is not None and np.isfinite(result.loss)
        assert {p.dtype for p in (*policy.model.parameters(), *policy.expert.parameters())} == {torch.float32}
    assert set(seen) == {torch.float32}
    one, two = (log_rows(tmp_path / name)[-1]["flow_loss"] for name in ("float32", "bfloat16"))
    assert one != two and one == pytest.approx(two, rel=0.05)


def test_a_flow_term_without_an_expert_says_how_to_get_one(demos, twin, tmp_path: Path):
    with pytest.raises(ConfigError, match="not loaded"):
        trainer(twin, demos, tmp_path, objective=Objective("joint"))


# ----------------------------------------------------------------------------------------------------- what is saved
@pytest.mark.parametrize("kind", ["ar", *OBJECTIVES])
def test_a_policy_says_what_trained_its_heads_and_serves_the_stale_one_on_request_alone(
    demos, tmp_path: Path, kind: str
):
    policy, objective = both(demos), OBJECTIVES.get(kind, Objective("ar"))
    policy.heads = {"ar": HeadState("ar"), "flow": HeadState("flow")}
    trainer(policy, demos, tmp_path, objective=objective, steps=2, save_at=[1]).run()
    stale = {"ar": {"flow"}, "flow": {"ar"}}.get(kind, set())
    for directory in (tmp_path / "policy_step_000001", tmp_path / "policy"):
        heads = read_metadata(directory).heads
        assert {head for head, state in heads.items() if state.stale} == stale
        trained = HeadState(objective.kind, objective.insulate)
        assert heads["flow"] == trained or not objective.has_flow
        assert heads["ar"] == trained or not objective.has_tokens
        for head in ("ar", "flow"):
            if head in stale:
                with pytest.raises(ConfigError, match="stale"):
                    loaded(directory, head)
            assert loaded(directory, head, allow_stale_head=head in stale).stale == (head in stale)


def test_a_few_demonstrations_are_learned_by_the_flow_head_beside_a_frozen_trunk(demos, twin, tmp_path: Path):
    trunk, events = twin.digest(), []
    new_expert(twin, replace(SIZES, width=64, mlp_ratio=4.0, time_features=32), seed=0)
    run = trainer(
        twin, demos, tmp_path, objective=OBJECTIVES["flow insulated"], steps=150, batch_rows=16, lr=3e-3,
        warmup_steps=5, shift_px=0, state_jitter_bins=0, log_every=25, on_event=events.append,
    )  # fmt: skip
    run.run()
    losses = [event.flow_loss for event in events if isinstance(event, SftLogged)]
    assert losses[0] > 0.7 and losses[-1] < 0.4 * losses[0]
    served = loaded(tmp_path / "policy")
    assert served.digest("ar") == trunk
    frames = run.batches.rows.frames.gather(np.arange(len(demos))).numpy()
    asked = [
        PredictRequest(Observation(frames=each, state_deg=state), seed=300 + i, draw=0, replan=0)
        for i, (each, state) in enumerate(zip(frames, demos.state_deg, strict=True))
    ]
    made_deg = [p.chunk_deg for p in FlowSampler(batch_rows=8, policy=served, run_seed=0).sample(asked, 0.0)]
    made, demonstrated = (served.stats.action.normalise(np.stack(c)) for c in (made_deg, demos.targets_deg))
    assert np.abs(made - demonstrated).mean() < 0.75 * np.abs(demonstrated - demonstrated.mean(0)).mean()


def test_the_expert_of_a_release_is_trained_alone_and_all_else_is_written_back_byte_for_byte(demos, tmp_path: Path):
    release = write_release(tmp_path / "release", tiny_twin(demos).codec)
    policy = loaded(release, "ar", norm_tag=TAG)
    expert_to_train(policy, Start.of(policy.origin), fresh=False, width=32, seed=0)
    trainer(policy, demos, tmp_path / "run", objective=OBJECTIVES["flow insulated"], steps=1).run()
    before, after = weights_of(release), weights_of(tmp_path / "run" / "policy")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and changed
    assert all(name.startswith("model.action_expert.") for name in changed)
    assert read_metadata(tmp_path / "run" / "policy").heads == {"flow": HeadState("flow", insulated=True)}
    assert digests(loaded(tmp_path / "run" / "policy")) == digests(policy)


# -------------------------------------------------------------------------------------------------------------- holes
def test_levels_without_a_symbol_are_counted_over_all_rows_whoever_decodes_the_pictures(demos, twin, tmp_path: Path):
    chunks = twin.stats.action.normalise(demos.targets_deg)
    codec = FastCodec.fit(chunks[:2], scale=15.0, vocabulary=300, byte_level=True)  # knows the levels of two chunks
    streams = codec.encode(chunks, allow_holes=True)
    below = np.rint(np.einsum("kt,btd->bkd", dct_matrix(30), chunks) * 15.0) < codec.alphabet.lowest
    short = [codec.symbols - int(codec.lengths_V[stream].sum()) for stream in streams]
    lost = [
        count + int(each.sum()) for count, each in zip(short, below, strict=True)
    ]  # written as the lowest: lost too
    assert sum(count > 0 for count in lost) > len(lost) // 2 and lost[0] == 0
    rows = [
        training_rows(demos, twin.stats, codec, CPU, scratch=tmp_path, threads=threads, allow_holes=True)
        for threads in (1, 3)
    ]
    assert [each.holes for each in rows] == [sum(lost)] * 2 and rows[0].digest == rows[1].digest
    with pytest.raises(HoleError):
        training_rows(demos, twin.stats, codec, CPU, scratch=tmp_path, threads=1)
    assert trainer(twin, demos, tmp_path / "none", steps=2).run().holes == 0
