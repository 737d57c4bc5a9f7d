"""Updates on demonstrations: the supervised gradient, the files of a run, and everything else as it is with waves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from guarded_run import stop, trainer_of
from one_update import gradients_of, settings
from test_trainer import TRAIN_KEYS, Killed, evidence, finish, read
from tiny_policy import tiny_policy
from torch.nn.functional import cross_entropy
from toy_run import lora, toy_trainer

from vla_rl.config.schema import GeometryConfig, LossConfig, OptimConfig
from vla_rl.errors import ConfigError
from vla_rl.policy.grammar import Grammar
from vla_rl.policy.prompt import Observation
from vla_rl.rl import events
from vla_rl.rl.demonstrated import SUPERVISED, DemonstratedStage, check_constants
from vla_rl.rl.lessons import BatchLimits, select_lessons
from vla_rl.rl.surfaces import Full
from vla_rl.rl.update import Fixed, accumulate_gradient
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.seeds import stream
from vla_rl.sft.objective import labels, token_cross_entropy

UNMOVED = {"mean_ratio": 1.0, "min_ratio": 1.0, "max_ratio": 1.0, "clip_fraction": 0.0, "approx_kl": 0.0}


def demonstrations(policy, seed=0, count=12, of=64):
    """Draws rows of a small data set: smooth chunks that go where the top picture's bright column is."""
    rng = np.random.default_rng(7)
    rows = []
    for index in range(of):
        column = int(rng.integers(16))
        frames = np.zeros((2, 16, 16, 3), np.uint8)
        frames[0, :, column] = 255
        chunk = np.linspace(0, 1, policy.horizon)[:, None] * (column - 8.0) + rng.normal(0, 0.2, policy.dim)
        bins = policy.encode_chunk(chunk)
        rows.append(
            Row(
                spec=EpisodeSpec(100000 + index // 8), replan=index % 8, frames=frames, state_deg=np.zeros(6),
                bins=bins, logp=np.zeros(len(bins), np.float32), legal_packed=policy.grammar.packed_masks(bins),
                rng_key=(seed, 0, 100000 + index // 8, index % 8), policy_digest="",
            )
        )  # fmt: skip
    return lambda update: [rows[i] for i in sorted(stream("test", seed, update).choice(of, count, replace=False))]


def taught(path, **arguments):
    """The toy run with demonstrations in place of waves."""
    return toy_trainer(path, demonstrations=demonstrations(tiny_policy()), **arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("taught") / "run"
    trainer = taught(path, steps=4)
    return path, finish(trainer), trainer


def cross_entropy_gradient(policy, rows, *, masked):
    """By torch's own cross-entropy, a row at a time, every token counting the same."""
    parameters = dict(policy.model.named_parameters())
    policy.model.zero_grad()
    tokens = sum(len(row.bins) for row in rows)
    for row in rows:
        seen, bins_T = [Observation(row.frames, row.state_deg)], torch.from_numpy(row.bins.astype(np.int64))
        logits_TV = policy.logits(policy.frames_tensor(seen), policy.state_tensor(seen), bins_T[None])[0]
        if masked:
            logits_TV = logits_TV.masked_fill(~torch.from_numpy(policy.grammar.masks(row.bins)), float("-inf"))
        (cross_entropy(logits_TV, bins_T, reduction="sum") / tokens).backward()
    return {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}


def objective_gradient(policy, rows, loss=None):
    """By the trainer's objective, with what the stage teaches every row."""
    parameters = Full().trainable(policy)
    stage = DemonstratedStage(policy, lambda update: rows, BatchLimits(3), lambda event: None)
    step = stage.step(1)
    wave = step.first()
    lessons, divisor = select_lessons(wave.rows, stage.taught(wave, None), weighting="token", episode_tokens=1)
    sums = accumulate_gradient(policy, lessons, divisor, settings(loss=loss), stage.temperature, Fixed(None, None))
    return gradients_of(parameters), sums, wave


def apart(a, b):
    """The largest difference, in units of the largest entry."""
    return max(float((a[name] - b[name]).abs().max()) for name in a) / max(float(x.abs().max()) for x in a.values())


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_gradient_is_that_of_cross_entropy_under_the_grammar_mask(ratio):
    torch.set_num_threads(1)
    rows = demonstrations(tiny_policy())(1)
    expected = cross_entropy_gradient(tiny_policy(), rows, masked=True)
    found, sums, _ = objective_gradient(tiny_policy(), rows, loss={"ratio": ratio})
    assert found.keys() == expected.keys() and apart(expected, found) < 1e-5
    assert sums.loss == pytest.approx(-1.0, abs=1e-6)  # the objective's value says nothing: its gradient does


def test_the_mask_is_the_only_difference_from_the_supervised_objective():
    """A codec in which every bin is one symbol has nothing to mask; one with merges has."""
    torch.set_num_threads(1)
    rows = demonstrations(tiny_policy())(1)
    masked = cross_entropy_gradient(tiny_policy(), rows, masked=True)
    assert apart(masked, cross_entropy_gradient(tiny_policy(), rows, masked=False)) > 1e-3

    def plain():
        policy = tiny_policy()
        lengths_V = np.ones(policy.vocabulary, np.int64)
        policy.grammar = Grammar(lengths_V, policy.grammar.total, np.zeros(policy.vocabulary, bool))
        policy.lengths_V = torch.from_numpy(lengths_V)
        return policy

    rng = np.random.default_rng(0)
    bins = rng.integers(0, 40, (len(rows), plain().grammar.total)).astype(np.int16)
    masks = map(plain().grammar.packed_masks, bins)
    rows = [replace(row, bins=own, legal_packed=mask) for row, own, mask in zip(rows, bins, masks, strict=True)]
    found, _, _ = objective_gradient(plain(), rows)
    policy, seen = plain(), [Observation(row.frames, row.state_deg) for row in rows]
    bins_RT = torch.from_numpy(bins.astype(np.int64))
    target = labels(bins_RT, torch.full((len(rows),), bins.shape[1]))
    logits = policy.logits(policy.frames_tensor(seen), policy.state_tensor(seen), bins_RT)
    token_cross_entropy(logits, target).backward()
    assert apart({name: p.grad for name, p in policy.model.named_parameters() if name in found}, found) < 1e-5


def test_rows_carry_what_the_policy_thought_of_them_before_the_update(whole):
    policy = tiny_policy()
    rows, seen = demonstrations(policy)(1), []
    stage = DemonstratedStage(policy, lambda update: rows, BatchLimits(5), seen.append)
    wave = stage.step(1).first()
    assert [e.done for e in seen] == [5, 10, 12] and all(e.total == 12 for e in seen)
    assert wave.episodes == () and sorted(r.rng_key for r in wave.rows) == sorted(r.rng_key for r in rows)
    by_key = {row.rng_key: row for row in rows}
    for row in wave.rows:
        seen_then = [Observation(row.frames, row.state_deg)]
        bins_T = torch.from_numpy(row.bins.astype(np.int64))
        with torch.no_grad():
            logits = policy.logits(policy.frames_tensor(seen_then), policy.state_tensor(seen_then), bins_T[None])[0]
        logits = logits.masked_fill(~torch.from_numpy(policy.grammar.masks(row.bins)), float("-inf"))
        logp = logits.log_softmax(-1).gather(1, bins_T[:, None])[:, 0]
        assert np.allclose(row.logp, logp, atol=1e-5) and np.array_equal(row.bins, by_key[row.rng_key].bins)
    first = read(whole[0], "train.jsonl")[0]
    assert first["chosen_nll"] == pytest.approx(np.mean([-row.logp.mean() for row in wave.rows]), abs=1e-6)


def test_what_nobody_has_played_is_null_and_the_policy_learns_the_demonstrations(whole):
    path, outcome, trainer = whole
    rows = read(path, "train.jsonl")
    assert outcome.finished and [list(row) for row in rows] == [TRAIN_KEYS] * 4
    nulls = """successes reward_mean median_group_std_cm lone_replans mixed_groups_frac success_advantage_share
        rollout_gap knockaway_frac setback_frac tip_frac strikes earned_progress_mean_cm ungrasped_disp_mean_cm
        mean_predict_batch env_steps_per_s predict_latency_s""".split()
    zeros = "episodes groups_total groups_refilled groups_kept predict_rounds masked_violations".split()
    for row in rows:
        assert {name: row[name] for name in nulls} == dict.fromkeys(nulls)
        assert {name: row[name] for name in zeros} == dict.fromkeys(zeros, 0)
        assert {name: row[name] for name in UNMOVED} == UNMOVED and row["loss"] == pytest.approx(-1.0, abs=1e-6)
        assert row["rows"] == 12 and row["tokens"] > 0 and row["tripwires"] == []
        assert row["anchor_kl"] > 0 and row["update_kl"] > 0 and row["rollout_s"] > 0
    assert rows[-1]["chosen_nll"] < rows[0]["chosen_nll"] - 0.2
    assert {e["phase"] for e in read(path, "episodes.jsonl")} == {"eval"}
    assert [row["step"] for row in read(path, "eval.jsonl")] == [0, 4]
    assert not (path / "waves").exists()
    counters = outcome.counters
    assert (counters.updates_applied, counters.episodes, counters.env_ticks, counters.predicts) == (4, 0, 0, 0)
    assert trainer.stage.temperature == SUPERVISED == 1.0


def test_the_temperature_of_the_waves_has_no_effect(whole, tmp_path):
    finish(taught(tmp_path / "run", steps=4, geometry={"temperature": 0.4}))
    assert evidence(tmp_path / "run") == evidence(whole[0])


@pytest.mark.parametrize(
    ("moment", "times"), [(events.RowsScored, 5), (events.UpdateProgress, 5), (events.StepDone, 2)]
)
def test_a_run_that_is_killed_or_out_of_time_goes_on_to_the_same_end(whole, tmp_path, moment, times):
    path, seen = tmp_path / "run", []

    def die(event):
        seen.append(event) if isinstance(event, moment) else None
        if len(seen) == times:
            raise Killed

    with pytest.raises(Killed):
        finish(taught(path, steps=4, on_event=die))
    late = taught(path, steps=4)

    def run_out(event):
        late.max_wall_s = 0.0 if isinstance(event, moment) else late.max_wall_s

    late.on_event = run_out
    outcome = finish(late)
    assert not outcome.finished and outcome.step < 4
    finish(taught(path, steps=4))
    assert evidence(path) == evidence(whole[0])


def test_a_small_adapter_learns_from_demonstrations_too(tmp_path):
    finish(taught(tmp_path / "run", steps=4, surface=lora()))
    rows = read(tmp_path / "run", "train.jsonl")
    assert rows[-1]["chosen_nll"] < rows[0]["chosen_nll"]


def test_wires_and_gates_about_episodes_have_nothing_to_judge_and_the_others_do(tmp_path):
    armed = dict.fromkeys(("strikes", "collapse", "knockaway", "setback", "divergence", "pace"), "armed")
    lines = {"collapse_waves": 1, "knockaway_waves": 1, "setback_waves": 1, "divergence_waves": 2}
    wires = {**armed, **lines, "pace_episodes_per_min": 1e9}
    own = {"demonstrations": demonstrations(tiny_policy()), "steps": 2}
    path = tmp_path / "void"
    assert finish(trainer_of(path, wires=wires, bars={"mixed_frac": 1.0}, **own)).finished
    assert all(row["tripwires"] == [] for row in read(path, "train.jsonl"))
    told = stop(tmp_path / "far", wires={"kl_stop": "armed", "kl_stop_nats": 1e-9}, **own)
    assert "too far from step 0" in told
    told = stop(tmp_path / "spent", budget={"wall_h": 1e-9}, **own)
    assert "budget of hours" in told


def test_a_limit_that_is_reached_while_rows_are_scored_stops_before_the_update(tmp_path):
    path = tmp_path / "run"
    trainer = trainer_of(path, budget={"wall_h": 1.0}, demonstrations=demonstrations(tiny_policy()), steps=2)

    def spend(event):
        if isinstance(event, events.RowsScored) and event.step == 2:
            trainer.account._clock -= 7200  # two hours

    trainer.on_event = spend
    with pytest.raises(Exception, match="stopped in step 2: the budget of hours is spent"):
        finish(trainer)
    rows = read(path, "train.jsonl")
    assert [row["step_skipped"] for row in rows] == [False, True] and rows[1]["rows"] == 0
    assert rows[1]["tripwires"][0]["wire"] == "budget.wall_h"


@pytest.mark.parametrize(("loss", "geometry", "where"), [
    ({"weighting": "constant"}, {}, "loss.weighting"),
    ({"kl_in": "reward", "kl_beta": 0.1}, {}, "loss.kl_in"),
    ({}, {"shuffle_advantages": True}, "geometry.shuffle_advantages"),
])  # fmt: skip
def test_constants_that_mean_nothing_here_are_refused(tmp_path, loss, geometry, where):
    with pytest.raises(ConfigError, match="demonstrations|rows") as refused:
        check_constants(LossConfig(**loss), GeometryConfig(**geometry))
    assert where in str(refused.value)
    check_constants(LossConfig(kl_in="reward"), GeometryConfig(credit="to_go"))


def test_a_kl_term_and_further_passes_work_as_with_waves(tmp_path):
    path = tmp_path / "run"
    finish(taught(path, steps=2, loss=LossConfig(kl_beta=0.1, epochs=2), optim=OptimConfig(lr=3e-3, microbatch_rows=4)))
    first, second = read(path, "train.jsonl")
    assert first["anchor_k3_pre"] == pytest.approx(0.0, abs=1e-9) and second["anchor_k3_pre"] > 0
    assert first["mean_ratio"] > 1  # of the second pass: the tokens have become more likely
