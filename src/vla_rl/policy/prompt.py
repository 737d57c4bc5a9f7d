"""The instruction that the policy reads, byte for byte as MolmoAct2 was trained on it.

In: a task in words and a normalised joint state. Out: the prompt text and the state bins inside it. Tokenising is
done in `vla_rl.policy.tokenizer`, pixels in `vla_rl.policy.vision`. Only the two-camera SO-100/SO-101 form is built.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CAMERAS = ("top", "wrist")
STATE_BINS = 256
SETUP = "single so100/so101 robotic arm in molmoact2"
CONTROL_MODE = "absolute joint pose"

_WRAPPERS = "\"'`“”‘’[](){}"
_STOPS = ".,!?;:…"
_CLOSERS = "\"'”’)]}"
_LEAD_INS = (
    re.compile(r"^(?:task|instruction|language[_ ]instruction|goal)\s*[:\-]\s*", re.IGNORECASE),
    re.compile(r"^(?:the\s+task\s+is\s+to|your\s+task\s+is\s+to)\s+", re.IGNORECASE),
)


@dataclass(frozen=True)
class Wording:
    """How the prompt names the robot and its control mode; a release ties both to a normalisation tag."""

    setup: str = SETUP
    control_mode: str = CONTROL_MODE


SO101 = Wording()


@dataclass(frozen=True)
class Observation:
    """What the policy sees at a replan.

    Attributes:
        frames: uint8 [camera, height, width, 3], in the order of `CAMERAS`.
        state_deg: float64 [6], measured joint angles in degrees of the rig (`vla_rl.policy.joint_frames`).
    """

    frames: np.ndarray
    state_deg: np.ndarray


def normalise_task(task: str) -> str:
    """The task as the prompt states it: one line, lower case, without lead-in, quotes or final punctuation.

    Several sentences are joined with ``"; "``. Applying the function to its own result changes nothing more than a
    second lead-in would. Follows the release's processor.
    """
    text, before = " ".join(task.split()), None
    while text and text != before:
        before = text
        text = text.strip(_WRAPPERS + " ")
        for lead_in in _LEAD_INS:
            text = lead_in.sub("", text, count=1).strip()
        text = text.rstrip(_STOPS).rstrip().rstrip(_CLOSERS).rstrip().rstrip(_STOPS).rstrip()
    sentences = [part.strip() for part in re.split(r"[.!?]+", text) if part.strip()]
    return ("; ".join(sentences) if len(sentences) > 1 else text).lower()


def state_bins(state_norm: np.ndarray) -> np.ndarray:
    """Bins of a normalised state: clip to [-1, 1], then ``rint((x + 1) / 2 * 255)``, ties to even.

    Args:
        state_norm: [..., joint]; nan counts as 0, +-inf as +-1.

    Returns:
        int64 [..., joint] in 0..255.
    """
    finite = np.nan_to_num(np.asarray(state_norm, dtype=np.float32), nan=0.0, posinf=1.0, neginf=-1.0)
    scaled = (np.clip(finite, -1.0, 1.0) + np.float32(1.0)) / np.float32(2.0) * np.float32(STATE_BINS - 1)
    return np.rint(scaled).astype(np.int64)


def prompt_text(task: str, bins: Sequence[int], *, image: str, wording: Wording = SO101) -> str:
    """The whole prompt up to and with ``<action_output>``.

    Args:
        task: the task, already normalised.
        bins: one state bin per joint.
        image: text that stands for one camera picture (``<|image|>``, or its expansion into patch tokens).
        wording: names of robot and control mode.
    """
    pictures = "".join(f"Image {i + 1}{image}" for i in range(len(CAMERAS)))
    state = "".join(f"<state_{b}>" for b in bins)
    return (
        f"<|im_end|>{pictures}<|im_start|>user\nThe task is to {task}. "
        f"The setup is <setup_start>{wording.setup}<setup_end>. "
        f"The current state of the robot is <state_start>{state}<state_end>. "
        f"The expected control mode is <control_start>{wording.control_mode}<control_end>. "
        "Given these, what action should the robot take to complete the task?<|im_end|>\n"
        "<|im_start|>assistant\n<action_output>"
    )
