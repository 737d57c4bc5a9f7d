"""Hand-computed cases of the token objective, the schedule and the augmentation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vla_rl.sft.augment import draw_offsets, jitter_state, shift_frames
from vla_rl.sft.objective import IGNORED, labels, token_accuracy, token_cross_entropy
from vla_rl.sft.optimiser import learning_rate


def test_every_label_token_counts_once_and_padding_never() -> None:
    # Row 0 has one token at p = 3/4; row 1 two tokens at p = 1/4 and 1/2. Padding is filled with certainty on bin 0.
    logits = torch.tensor([[[0.0, math.log(3)], [99.0, 0.0]], [[math.log(3), 0.0], [0.0, 0.0]]], requires_grad=True)
    target = labels(torch.tensor([[1, 0], [1, 1]]), torch.tensor([1, 2]))
    assert target.tolist() == [[1, IGNORED], [1, 1]]
    loss = token_cross_entropy(logits, target)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3, abs=1e-6)
    loss.backward()
    assert logits.grad is not None and logits.grad[0, 1].abs().max() == 0
    assert logits.grad[0, 0].tolist() == pytest.approx([0.25 / 3, -0.25 / 3], abs=1e-6)


def test_accuracy_ignores_padding() -> None:
    logits = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    target = torch.tensor([[1, IGNORED], [1, 1]])
    assert token_accuracy(logits, target).item() == pytest.approx(2 / 3)


def test_the_learning_rate_warms_up_and_ends_near_three_percent() -> None:
    assert learning_rate(0, 1000, 1.0, 200) == pytest.approx(1 / 200)
    assert learning_rate(99, 1000, 1.0, 200) == pytest.approx(0.5 * (0.03 + 0.97 * (1 + math.cos(0.099 * math.pi)) / 2))
    assert learning_rate(500, 1000, 2.0, 200) == pytest.approx(2 * 0.515)
    assert learning_rate(999, 1000, 1.0, 200) == pytest.approx(0.03, abs=1e-4)


def test_a_shift_moves_each_camera_by_its_own_offset_and_repeats_the_border() -> None:
    frames = torch.arange(2 * 4 * 5, dtype=torch.uint8).reshape(1, 2, 4, 5, 1).expand(1, 2, 4, 5, 3)
    shifted = shift_frames(frames, torch.tensor([[[1, 0], [0, -2]]]))
    top, wrist = frames[0, 0], frames[0, 1]
    assert torch.equal(shifted[0, 0, 1:], top[:-1]) and torch.equal(shifted[0, 0, 0], top[0])
    assert torch.equal(shifted[0, 1, :, :-2], wrist[:, 2:])
    assert torch.equal(shifted[0, 1, :, -2:], wrist[:, -1:].expand(4, 2, 3))


def test_augmentation_is_the_identity_at_zero_and_bounded_otherwise() -> None:
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (3, 2, 8, 8, 3), dtype=np.uint8))
    bins = torch.tensor([[0, 128, 255, 1, 254, 7]] * 3)
    still = draw_offsets(rng, rows=3, cameras=2, joints=6, shift_px=0, jitter_bins=0)
    assert torch.equal(shift_frames(frames, still.shift_RC2), frames)
    assert torch.equal(jitter_state(bins, still.jitter_RJ), bins)
    offsets = draw_offsets(rng, rows=500, cameras=2, joints=6, shift_px=3, jitter_bins=2)
    assert set(offsets.shift_RC2.unique().tolist()) == set(range(-3, 4))
    assert set(offsets.jitter_RJ.unique().tolist()) == set(range(-2, 3))
    jittered = jitter_state(bins[:1].expand(500, -1), offsets.jitter_RJ)
    assert jittered.min() == 0 and jittered.max() == 255 and (jittered - bins[0]).abs().max() == 2
