"""The prompt is the documented one, byte for byte, and its slots are where they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy_support import MINI, TASK
from tokenizers import Tokenizer

from vla_rl.errors import ConfigError
from vla_rl.policy.prompt import normalise_task, prompt_text, state_bins
from vla_rl.policy.tokenizer import TokenIds, build_layout, build_tokenizer
from vla_rl.policy.vision import batch_pooling_index, pack_frames, pooling_index

DOCUMENTED = (
    "<|im_end|>Image 1<|image|>Image 2<|image|><|im_start|>user\n"
    "The task is to pick up the toy boat and place it on the wooden disk. The setup is <setup_start>single so100/so101 "
    "robotic arm in molmoact2<setup_end>. The current state of the robot is <state_start><state_0><state_12>"
    "<state_255><state_7><state_128><state_3><state_end>. The expected control mode is <control_start>absolute "
    "joint pose<control_end>. "
    "Given these, what action should the robot take to complete the task?<|im_end|>\n"
    "<|im_start|>assistant\n<action_output>"
)


def test_prompt_is_the_documented_one_byte_for_byte():
    assert prompt_text(normalise_task(TASK), [0, 12, 255, 7, 128, 3], image="<|image|>").encode() == DOCUMENTED.encode()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (TASK, "pick up the toy boat and place it on the wooden disk"),
        ("  'Task:  The task is to\n Grasp IT!'. ", "grasp it"),
        ("Instruction - close the drawer. Then wait.", "close the drawer; then wait"),
        ("[place (the cup)]", "place (the cup"),
        ("", ""),
    ],
)
def test_task_text_is_normalised_as_documented(raw: str, shown: str):
    assert normalise_task(raw) == shown


def test_state_bins_round_half_to_even_and_survive_nan_and_infinity():
    assert state_bins(np.array([-1, 1, 0, np.nan, np.inf, -np.inf, 7, -7])).tolist() == [
        0,
        255,
        128,
        128,
        255,
        0,
        255,
        0,
    ]
    # These float32 values land exactly on 126.5 and 130.5, and 0 on 127.5.
    assert state_bins(np.array([2 * 126.5 / 255 - 1, 2 * 130.5 / 255 - 1, 0.0])).tolist() == [126, 130, 128]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(TASK, 512)


def test_tokenising_the_prompt_and_decoding_it_gives_the_same_text(tokenizer: Tokenizer):
    text = DOCUMENTED.replace("wooden disk", "blüe dïsk ☃")
    assert tokenizer.decode(tokenizer.encode(DOCUMENTED).ids, skip_special_tokens=False) == DOCUMENTED
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_families_stand_in_release_order(tokenizer: Tokenizer):
    ids = TokenIds.of(tokenizer, 512)
    at = tokenizer.token_to_id
    assert at("<action_output>") + 1 == at("<action_start>") == ids.action_start == at("<action_0>") - 2
    assert at("<action_511>") == ids.action_block + 511 < ids.base_size == at("<im_start>")
    assert at("<|endoftext|>") + 2 == at("<|im_end|>") and at("<state_end>") + 1 == at("<state_0>") == ids.state_start
    assert ids.base_size % 64 == 0


def test_a_tokenizer_of_another_width_is_refused(tokenizer: Tokenizer):
    with pytest.raises(ConfigError):
        TokenIds.of(tokenizer, 513)


def test_building_the_tokenizer_twice_gives_the_same_vocabulary(tokenizer: Tokenizer):
    assert build_tokenizer(TASK, 512).to_str() == tokenizer.to_str()


def test_layout_of_the_full_size_twin_is_130_tokens_and_equals_the_encoded_text(tokenizer: Tokenizer):
    layout = build_layout(tokenizer, TASK, tokens_per_image=49, action_width=512)
    assert len(layout.template_P) == 130 and len(layout.image_slots_I) == 98 and layout.block_P.sum() == 102
    layout.template_P[layout.state_slots_J] += [0, 12, 255, 7, 128, 3]
    picture = "<im_start>" + "<im_patch>" * 49 + "<im_end>"
    assert (
        layout.template_P.tolist() == tokenizer.encode(DOCUMENTED.replace("<|image|>", picture) + "<action_start>").ids
    )


@pytest.mark.parametrize("task", ["", "  '' ", "press <action_3> now"])
def test_an_empty_or_smuggled_task_is_refused(tokenizer: Tokenizer, task: str):
    with pytest.raises(ConfigError):
        build_layout(tokenizer, task, tokens_per_image=9, action_width=512)


def test_patches_are_row_column_channel_in_minus_one_to_one():
    frames = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    frames[0, 0, 3, 1] = 255  # row 0, column 3, green: patch 1, position (0, 1), channel 1
    patches = pack_frames(frames, image_px=4, patch_px=2)
    assert patches.shape == (1, 4, 12)
    expected = -torch.ones(4, 12)
    expected[1, 1 * 3 + 1] = 1.0
    assert torch.equal(patches[0], expected)


def test_frames_of_another_size_are_resized_to_whole_grey_levels():
    frames = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [255, 255, 9, 9], [255, 255, 9, 9]], dtype=torch.uint8)
    half = pack_frames(frames[None, :, :, None].expand(1, 4, 4, 3), image_px=2, patch_px=1)
    assert torch.equal(half[0, :, 0], torch.tensor([0.0, 1.0, 255.0, 9.0]) / 255 * 2 - 1)


def test_pooling_windows_are_two_by_two_and_odd_grids_are_padded():
    assert pooling_index(image_px=32, patch_px=8).tolist() == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]
    odd = pooling_index(image_px=24, patch_px=8)
    assert odd.tolist() == [[0, 1, 3, 4], [2, -1, 5, -1], [6, 7, -1, -1], [8, -1, -1, -1]]
    assert batch_pooling_index(odd, 2, 9)[4:].tolist() == [
        [9, 10, 12, 13],
        [11, -1, 14, -1],
        [15, 16, -1, -1],
        [17, -1, -1, -1],
    ]
    assert pooling_index(image_px=MINI.image_px, patch_px=MINI.patch_px).shape == (9, 4)


def test_frames_that_are_not_uint8_colour_are_refused():
    with pytest.raises(ConfigError):
        pack_frames(torch.zeros(1, 4, 4, 3), image_px=4, patch_px=2)
