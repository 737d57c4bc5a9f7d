"""The token loss: values and gradients by hand, in double precision."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vla_rl.errors import ConfigError
from vla_rl.rl.loss import (
    KL_ESTIMATORS,
    WEIGHTINGS,
    LossInputs,
    Objective,
    RatioStats,
    episode_weights,
    grpo_loss,
    normaliser,
)

DOCUMENTED = Objective(clip_low=0.8, clip_high=1.28)


def inputs(new, old, advantage, mask=None, weight=None, normaliser=1.0, **more):
    new = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    return LossInputs(
        new_logp_RT=new,
        old_logp_RT=torch.tensor(old, dtype=torch.float64),
        mask_RT=torch.ones(new.shape, dtype=torch.bool) if mask is None else torch.tensor(mask),
        advantage_R=torch.tensor(advantage, dtype=torch.float64),
        weight_R=torch.ones(len(new), dtype=torch.float64)
        if weight is None
        else torch.tensor(weight, dtype=torch.float64),
        normaliser=normaliser,
        **more,
    )


def gradient(case, objective=DOCUMENTED):
    outputs = grpo_loss(case, objective)
    outputs.loss.backward()
    return outputs, case.new_logp_RT.grad


def test_value_and_gradient_by_hand():
    # ratios 1.1 and 0.9, advantage 2, weight 3, normaliser 4: loss = -3 * 2 * (1.1 + 0.9) / 4 = -3; d/dn = -w A r / N
    case = inputs([[math.log(1.1), math.log(0.9)]], [[0.0, 0.0]], [2.0], weight=[3.0], normaliser=4.0)
    outputs, grad = gradient(case)
    assert outputs.loss.item() == pytest.approx(-3.0, abs=1e-15)
    assert grad.tolist()[0] == pytest.approx([-1.65, -1.35], abs=1e-15)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.5, 1.0, 1.28, 0.0),  # above the band and wanted higher: clipped, no gradient
        (1.5, -1.0, -1.5, -1.5),  # above the band and wanted lower: live
        (0.5, 1.0, 0.5, 0.5),  # below the band and wanted higher: live
        (0.5, -1.0, -0.8, 0.0),  # below the band and wanted lower: clipped
    ],
)
def test_the_clip_binds_by_the_sign_of_the_advantage(ratio, advantage, value, slope):
    outputs, grad = gradient(inputs([[math.log(ratio)]], [[0.0]], [advantage]))
    assert outputs.loss.item() == pytest.approx(-value, abs=1e-12)
    assert grad.item() == pytest.approx(-slope, abs=1e-12)


def test_at_ratio_one_the_gradient_is_the_advantage_weighted_likelihood_gradient_exactly():
    new = torch.randn(3, 4, dtype=torch.float64)
    case = inputs(new.tolist(), new.tolist(), [0.7, -1.3, 2.0], normaliser=12.0)
    outputs, grad = gradient(case)
    assert torch.equal(grad, -case.advantage_R[:, None].expand(3, 4) / 12.0)
    assert outputs.stats.summary() == {
        "mean_ratio": 1.0, "min_ratio": 1.0, "max_ratio": 1.0, "clip_fraction": 0.0, "approx_kl": 0.0,
    }  # fmt: skip


def test_zero_advantage_gives_exactly_zero_gradient_where_one_gives_some():
    new, old = [[-1.0, -2.0]], [[-1.5, -1.0]]
    assert gradient(inputs(new, old, [0.0]))[1].tolist() == [[0.0, 0.0]]
    assert gradient(inputs(new, old, [1.0]))[1].abs().sum() > 0


def test_what_stands_in_the_padding_changes_nothing_bit_for_bit():
    mask = [[True, True, False], [True, False, False]]
    results = []
    for filler in (0.0, -3.0, math.inf, -math.inf, math.nan, 1e300):
        new = [[-1.0, -2.0, filler], [-0.5, filler, filler]]
        old = [[-1.2, -1.9, -filler], [-0.4, filler, 7.0]]
        outputs, grad = gradient(inputs(new, old, [1.0, -2.0], mask=mask, normaliser=3.0))
        results.append((outputs.loss.item(), outputs.stats, grad[torch.tensor(mask)].tolist()))
        assert torch.equal(grad[~torch.tensor(mask)], torch.zeros(3, dtype=torch.float64))
    assert all(result == results[0] for result in results)


def test_a_fully_masked_first_row_does_not_hide_the_second():
    outputs, grad = gradient(inputs([[-1.0], [-1.0]], [[-1.0], [-1.0]], [1.0, 1.0], mask=[[False], [True]]))
    assert outputs.loss.item() == -1.0 and grad.tolist() == [[0.0], [-1.0]]


EVERY_TERM = Objective(0.8, 1.28, dual_clip=1.5, kl_beta=0.1, entropy_bonus=0.05)


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("objective", [EVERY_TERM, replace(EVERY_TERM, ratio="sequence", kl_estimator="k2")])
def test_micro_batches_add_up_to_the_same_gradient_under_every_aggregator(rows, weighting, objective):
    torch.manual_seed(0)
    lengths = range(1, 9)
    theta = torch.randn(8, 8, dtype=torch.float64)
    old = theta + 0.3 * torch.randn(8, 8, dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    advantage = torch.randn(8, dtype=torch.float64)
    weight = torch.tensor(episode_weights(list(lengths), weighting), dtype=torch.float64)
    divisor = normaliser(list(lengths), weighting, 5)
    anchor = theta + 0.2 * torch.randn(8, 8, dtype=torch.float64)

    def total(size):
        live = theta.clone().requires_grad_()
        stats, loss = RatioStats(), 0.0
        for start in range(0, 8, size):
            part = slice(start, start + size)
            given = (values[part] for values in (live, old, mask, advantage, weight))
            more = {"anchor_logp_RT": anchor[part], "entropy_RT": live[part].square()}
            outputs = grpo_loss(LossInputs(*given, divisor, **more), objective)
            outputs.loss.backward()
            stats, loss = stats + outputs.stats, loss + outputs.loss.item()
        return loss, stats, live.grad

    loss, stats, grad = total(rows)
    whole_loss, whole_stats, whole_grad = total(8)
    assert abs(loss - whole_loss) < 1e-12 and (grad - whole_grad).abs().max() < 1e-12
    assert stats.tokens == whole_stats.tokens == 36 and stats.outside == whole_stats.outside > 0
    assert stats.summary()["mean_ratio"] == pytest.approx(whole_stats.summary()["mean_ratio"], abs=1e-12)


def test_statistics_by_hand_and_token_weighted():
    # ratios: 2 (outside), 1 | 0.5 (outside): the rows' weights do not enter
    case = inputs([[math.log(2), 0.0], [math.log(0.5), 9.0]], [[0.0, 0.0], [0.0, 0.0]], [1.0, 1.0],
                  mask=[[True, True], [True, False]], weight=[5.0, 1.0])  # fmt: skip
    summary = grpo_loss(case, DOCUMENTED).stats.summary()
    assert summary["mean_ratio"] == pytest.approx(3.5 / 3)
    assert (summary["min_ratio"], summary["max_ratio"]) == (pytest.approx(0.5), pytest.approx(2.0))
    assert summary["clip_fraction"] == pytest.approx(2 / 3)
    assert summary["approx_kl"] == pytest.approx(((2 - 1 - math.log(2)) + 0 + (0.5 - 1 + math.log(2))) / 3)


def test_no_token_no_statistics():
    assert set(RatioStats().summary().values()) == {None}


def test_episode_weights_make_every_episode_count_the_same_and_keep_the_total():
    tokens = [10, 30, 20]
    weights = episode_weights(tokens, "episode")
    assert [w * t for w, t in zip(weights, tokens, strict=True)] == pytest.approx([20.0, 20.0, 20.0])
    assert sum(w * t for w, t in zip(weights, tokens, strict=True)) == pytest.approx(sum(tokens))
    assert episode_weights(tokens, "token") == [1.0, 1.0, 1.0]


def test_an_unknown_weighting_and_a_band_without_one_are_refused():
    with pytest.raises(ConfigError):
        episode_weights([1], "row")
    for low, high in ((1.0, 1.28), (0.8, 1.0), (1.1, 1.28)):
        with pytest.raises(ConfigError, match="bracket 1"):
            Objective(clip_low=low, clip_high=high)


def test_shapes_that_do_not_fit_are_named():
    case = inputs([[0.0, 0.0]], [[0.0, 0.0]], [1.0])
    with pytest.raises(ValueError, match=r"old_logp_RT has \(1, 3\)"):
        grpo_loss(replace(case, old_logp_RT=torch.zeros(1, 3)), DOCUMENTED)
    with pytest.raises(ValueError, match="advantage_R"):
        grpo_loss(replace(case, advantage_R=torch.zeros(2)), DOCUMENTED)


def test_a_sequence_ratio_is_the_geometric_mean_and_its_gradient_is_shared():
    # log ratios .3 and -.1 in a chunk of two: ratio e^.1 on both tokens, inside the band; the padding stays out
    case = inputs([[0.3, -0.1, 7.0]], [[0.0, 0.0, 0.0]], [2.0], mask=[[True, True, False]], normaliser=4.0)
    outputs, grad = gradient(case, replace(DOCUMENTED, ratio="sequence"))
    ratio = math.exp(0.1)
    assert outputs.loss.item() == pytest.approx(-2 * ratio * 2 / 4)
    assert grad.tolist()[0] == pytest.approx([-2 * ratio / 4, -2 * ratio / 4, 0.0])
    summary = outputs.stats.summary()
    assert summary["min_ratio"] == summary["max_ratio"] == pytest.approx(ratio)
    token = grpo_loss(case, DOCUMENTED).stats.summary()
    assert token["clip_fraction"] == 0.5 and summary["clip_fraction"] == 0.0
    assert token["approx_kl"] == summary["approx_kl"]


@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_in_a_chunk_of_one_token_both_ratios_are_the_same(ratio):
    case = inputs([[math.log(ratio)]], [[0.0]], [-1.0])
    assert grpo_loss(case, DOCUMENTED).loss == grpo_loss(case, replace(DOCUMENTED, ratio="sequence")).loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (5.0, -1.0, -3.0, 0.0),  # worse than the bound: cut off, no gradient
        (2.0, -1.0, -2.0, -2.0),  # not yet
        (5.0, 1.0, 1.28, 0.0),  # positive advantages know no second bound
        (0.5, -1.0, -0.8, 0.0),
    ],
)
def test_the_dual_clip_bounds_negative_advantages_only(ratio, advantage, value, slope):
    outputs, grad = gradient(inputs([[math.log(ratio)]], [[0.0]], [advantage]), replace(DOCUMENTED, dual_clip=3.0))
    assert outputs.loss.item() == pytest.approx(-value, abs=1e-12)
    assert grad.item() == pytest.approx(-slope, abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.2, 1.0), ("k2", 0.02, 0.2), ("k3", math.exp(-0.2) + 0.2 - 1, 1 - math.exp(-0.2))],
)
def test_value_and_gradient_of_the_kl_term_by_hand(estimator, value, slope):
    case = inputs([[-1.0, -1.0]], [[-1.0, -1.0]], [0.0], normaliser=2.0,
                  anchor_logp_RT=torch.tensor([[-1.2, -1.0]], dtype=torch.float64))  # fmt: skip
    outputs, grad = gradient(case, replace(DOCUMENTED, kl_beta=0.5, kl_estimator=estimator))
    assert outputs.loss.item() == pytest.approx(0.5 * value / 2, abs=1e-12)
    assert grad.tolist()[0] == pytest.approx([0.5 * slope / 2, 0.5 * (1.0 if estimator == "k1" else 0.0) / 2])
    assert outputs.anchor_k3_sum == pytest.approx(math.exp(-0.2) + 0.2 - 1)


def test_the_estimators_agree_near_the_anchor_and_k3_is_never_negative():
    drift = torch.linspace(-2, 2, 401, dtype=torch.float64)
    assert (KL_ESTIMATORS["k3"](drift) >= 0).all() and (KL_ESTIMATORS["k2"](drift) >= 0).all()
    small = torch.tensor([1e-4, -1e-4], dtype=torch.float64)
    assert torch.allclose(KL_ESTIMATORS["k3"](small), KL_ESTIMATORS["k2"](small), rtol=1e-3)
    # Under the live distribution the mean of each estimator is the divergence (k2: nearly).
    live, anchor = torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    exact = float((live * (live / anchor).log()).sum())
    for name in ("k1", "k3"):
        assert float((live * KL_ESTIMATORS[name]((live / anchor).log())).sum()) == pytest.approx(exact, abs=1e-12)


def test_the_entropy_bonus_is_a_term_of_its_own():
    entropy = torch.tensor([[0.5, 9.0]], dtype=torch.float64, requires_grad=True)
    case = inputs([[-1.0, -1.0]], [[-1.0, -1.0]], [0.0], mask=[[True, False]], entropy_RT=entropy, normaliser=2.0)
    outputs = grpo_loss(case, replace(DOCUMENTED, entropy_bonus=0.1))
    outputs.loss.backward()
    assert outputs.loss.item() == pytest.approx(-0.1 * 0.5 / 2) and entropy.grad.tolist() == [[-0.05, 0.0]]


def test_terms_without_what_they_need_are_named():
    case = inputs([[0.0]], [[0.0]], [1.0])
    with pytest.raises(ValueError, match="anchor_logp_RT"):
        grpo_loss(case, replace(DOCUMENTED, kl_beta=0.1))
    with pytest.raises(ValueError, match="entropy_RT"):
        grpo_loss(case, replace(DOCUMENTED, entropy_bonus=0.1))
    for bad in ({"ratio": "row"}, {"kl_estimator": "k4"}, {"dual_clip": 1.0}):
        with pytest.raises(ConfigError):
            replace(DOCUMENTED, **bad)


def test_normalisers_by_hand():
    tokens = [10, 30, 20]
    assert normaliser(tokens, "token", 700) == 60.0
    assert normaliser(tokens, "episode", 700) == pytest.approx(60.0)
    assert normaliser(tokens, "constant", 700) == 2100.0
    assert episode_weights(tokens, "constant") == [1.0, 1.0, 1.0]
