"""Joint frames: the documented tables, the map applied exactly once, and refusals of what cannot be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from policy_support import TASK

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.joint_frames import RIG, V21, Angles, state_frame
from vla_rl.policy.normalise import NormStats, QuantileTable
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.refusals import JointFrame
from vla_rl.policy.tables import check_joint_frame

# q01 and q99 in degrees: the released table, the same mapped to the rig's frame at conversion (its lift descends), and
# a table of this arm's own recordings.
RELEASED = ((-42.1, 45.2, 35.4, 4.9, -65.6, -0.3), (48.6, 186.1, 173.6, 93.4, 43.5, 44.8))
REMAPPED = ((-41.9, 46.3, -51.6, 5.7, -63.4, 0.9), (48.3, -95.3, 83.1, 91.8, 42.9, 44.1))
RECORDED = ((-36.9, -110.0, 14.4, 23.5, -157.2, 0.0), (4.8, 12.2, 88.6, 81.0, 157.2, 42.7))
POSE = np.array([3.0, -90.0, 50.0, 75.0, -7.0, 20.0])
POSES = arrays(np.float64, (3, 6), elements=st.floats(-180.0, 180.0, width=32))


def table(pair, frame: str = RIG) -> QuantileTable:
    return QuantileTable(np.array(pair[0]), np.array(pair[1]), frame)


@pytest.mark.parametrize(("pair", "frame"), [(RELEASED, V21), (REMAPPED, RIG), (RECORDED, RIG)])
def test_the_documented_tables_are_told_apart_and_accepted(pair, frame: str):
    assert state_frame(*map(np.array, pair)) == frame
    assert check_joint_frame(table(pair), None, where="x") == check_joint_frame(table(pair), frame, where="x") == frame


def test_the_map_is_the_documented_one_in_both_directions():
    mapped = Angles(POSE, RIG).to(V21)
    assert mapped.degrees.tolist() == [3.0, 90.0 - (-90.0), 50.0 + 90.0, 75.0, -7.0, 20.0] and mapped.frame == V21
    # The arm stretched out horizontally is v2.1's zero.
    assert Angles(np.array([0, 90.0, -90.0, 0, 0, 0]), RIG).to(V21).degrees.tolist() == [0] * 6


@given(degrees=POSES)
def test_there_and_back_is_the_identity_and_a_second_application_changes_nothing(degrees: np.ndarray):
    there = Angles(degrees, RIG).to(V21)
    assert there.to(V21) is there and np.abs(there.to(RIG).degrees - degrees).max() <= 1e-12
    tensor = Angles(torch.from_numpy(degrees), RIG).to(V21)
    assert np.array_equal(tensor.degrees.numpy(), there.degrees) and tensor.frame == V21


def test_applying_the_map_twice_to_bare_numbers_would_hide_on_the_lift_and_turn_the_elbow_half_around():
    once = Angles(POSE, RIG).to(V21).degrees
    twice = Angles(once, RIG).to(V21).degrees  # only by lying about the frame
    assert twice[1] == POSE[1] and twice[2] == POSE[2] + 180.0


@given(degrees=POSES)
def test_a_table_maps_rig_angles_once_whatever_frame_they_come_in(degrees: np.ndarray):
    native, low, high = table(RELEASED, V21), *(Angles(np.array(q), V21).to(RIG).degrees for q in RELEASED)
    remapped = QuantileTable(low, high)  # the same table in the rig's frame: a descending lift
    assert low[1] > high[1]
    by_table = native.normalise(degrees)
    assert np.array_equal(by_table, native.normalise(Angles(degrees, RIG).to(V21)))
    assert np.abs(by_table - remapped.normalise(degrees)).max() < 1e-12
    values = np.clip(degrees / 100, -1, 1)
    assert np.abs(native.denormalise(values) - remapped.denormalise(values)).max() < 1e-12


def test_a_policy_over_v21_tables_reads_and_writes_degrees_of_the_rig(policy: VlaPolicy, codec: FastCodec):
    released, mapped = (
        VlaPolicy(
            model=policy.model, tokenizer=policy.tokenizer, codec=codec, task=TASK, device="cpu",
            stats=NormStats(t, t, tag="t", quantile=0.01, horizon=30),
        )
        for t in (table(RELEASED, V21), table([Angles(np.array(q), V21).to(RIG).degrees for q in RELEASED]))
    )  # fmt: skip
    observation = Observation(np.zeros((2, 48, 48, 3), np.uint8), POSE)
    assert released.joint_frame == V21 and mapped.joint_frame == RIG
    assert torch.equal(released.state_tensor([observation]), mapped.state_tensor([observation]))
    chunk = POSE + np.linspace(0, 10, 30)[:, None]
    assert np.array_equal(released.encode_chunk(chunk), mapped.encode_chunk(chunk))
    assert np.abs(released.decode_chunk(released.encode_chunk(chunk)) - chunk).max() < 8.0
    # The all-zero chunk is the middle of the ranges: a lift of about -26 degrees on the rig, not 116.
    assert np.allclose(released.zero_chunk()[0], mapped.zero_chunk()[0])
    assert released.zero_chunk()[0, 1] == pytest.approx(90 - (45.2 + 186.1) / 2)


def test_tables_of_one_policy_cannot_be_in_two_frames(stats: NormStats):
    assert stats.in_frame(V21).frame == V21 and stats.frame == RIG
    with pytest.raises(ValueError, match="different joint frames"):
        replace(stats, state=replace(stats.state, frame=V21))


def shifted(pair, elbow_deg: float):
    return [np.array(q) + elbow_deg * (np.arange(6) == 2) for q in pair]


@pytest.mark.parametrize(
    ("pair", "declared", "said"),
    [
        ((np.zeros(6), np.full(6, 10.0)), None, "neither"),
        (([0.0, 45.0, 0, 0, 0, 0], [10.0, 186.0, 10, 10, 10, 10]), None, "neither"),  # a v21 lift with another elbow
        (RECORDED, V21, "rig, not v21"),
        (RELEASED, RIG, "v21, not rig"),
        (shifted(RELEASED, -180.0), V21, "elbow"),
        (shifted(RELEASED, 180.0), None, "elbow"),
        (shifted(RECORDED, 180.0), None, "elbow"),
        (shifted(REMAPPED, -180.0), None, "elbow"),
    ],
)
def test_unknown_contradictory_and_doubly_mapped_tables_are_refused(pair, declared: str | None, said: str):
    with pytest.raises(JointFrame, match=said) as refused:
        check_joint_frame(table(pair), declared, where="norm_stats.json")
    assert said != "neither" or "policy.joint_frame" in str(refused.value)


def test_a_declared_frame_settles_what_a_table_does_not_tell():
    unknown = table((np.zeros(6), np.full(6, 10.0)))
    assert [check_joint_frame(unknown, frame, where="x") for frame in (RIG, V21)] == [RIG, V21]


def test_frames_of_another_name_and_arms_of_another_size_have_no_form():
    with pytest.raises(ValueError, match="no joint frame"):
        Angles(POSE, "v30")
    with pytest.raises(ValueError, match="no form"):
        Angles(POSE[:5], RIG).to(V21)
