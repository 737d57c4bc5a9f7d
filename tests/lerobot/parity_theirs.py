"""LeRobot's side of the comparison, run where `lerobot[molmoact2]` is installed; this package is not.

    HF_HUB_OFFLINE=1 python tests/lerobot/parity_theirs.py DIR

Everything goes through what LeRobot itself uses in a rollout: `make_molmoact2_pre_post_processors`, `MolmoAct2Policy`
and its strict loader, `predict_action_chunk`. One thing is put in its way: the noise of a flow chunk comes from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.lerobot_types import TransitionKey
from lerobot.policies.molmoact2.configuration_molmoact2 import MolmoAct2Config
from lerobot.policies.molmoact2.modeling_molmoact2 import MolmoAct2Policy
from lerobot.policies.molmoact2.molmoact2_hf_model.action_tokenizer import UniversalActionProcessor
from lerobot.policies.molmoact2.processor_molmoact2 import (
    _build_discrete_state_string,
    make_molmoact2_pre_post_processors,
)
from parity_exchange import (
    ASKED,
    CAMERAS,
    CHECKPOINTS,
    JOINT_OFFSETS,
    JOINT_SIGNS,
    SIZES,
    SPOKEN,
    TABLES,
    TAG,
    TASKS,
    Answers,
    digest,
    versions,
)
from safetensors.torch import load_file

STATE, PICTURES = "observation.state", [f"observation.images.{camera}" for camera in CAMERAS]


def settings(directory: Path, *, mapped: bool) -> MolmoAct2Config:
    """What a user of the checkpoint would set, in float32.

    Args:
        mapped: the checkpoint's tables are in the release's joint frame.
    """
    pictures = {name: PolicyFeature(FeatureType.VISUAL, (3, 480, 640)) for name in PICTURES}
    return MolmoAct2Config(
        checkpoint_path=str(directory),
        norm_tag=TAG,
        model_dtype="float32",
        inference_action_mode="discrete",
        discrete_action_tokenizer=str(directory.parent / "release" / "fast_tokenizer"),
        device="cpu",
        input_features={STATE: PolicyFeature(FeatureType.STATE, (6,)), **pictures},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        joint_signs=JOINT_SIGNS if mapped else None,
        joint_offsets=JOINT_OFFSETS if mapped else None,
    )


def observed(frames: np.ndarray, state: np.ndarray, task: str) -> dict[str, Any]:
    """One observation as a robot gives it."""
    pictures = {name: torch.from_numpy(picture) for name, picture in zip(PICTURES, frames, strict=True)}
    return {STATE: torch.from_numpy(state), **pictures, "task": task}


@contextmanager
def given_noise(noise: torch.Tensor) -> Iterator[None]:
    """`torch.randn` returns these numbers, once."""
    left, original = [noise], torch.randn

    def randn(shape: tuple[int, ...], **_: Any) -> torch.Tensor:
        assert tuple(shape) == tuple(left[0].shape), shape
        return left.pop()

    torch.randn = randn
    try:
        yield
    finally:
        torch.randn = original
    assert not left, "no noise was drawn"


def loading(policy: MolmoAct2Policy, directory: Path) -> dict[str, Any]:
    """How the stored tensors fit, by LeRobot's own network and torch's strict loading."""
    stored: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        stored |= load_file(path)
    held = policy.model.state_dict()
    missing, unexpected = sorted(set(held) - set(stored)), sorted(set(stored) - set(held))
    policy.model.load_state_dict(stored, strict=True)
    same = sum(torch.equal(tensor, held[name]) for name, tensor in stored.items())
    numbers = {name: tensor.detach().numpy() for name, tensor in held.items()}
    return {
        "missing": missing,
        "unexpected": unexpected,
        "tensors": len(held),
        "equal": same,
        "float32": all(tensor.dtype == torch.float32 for tensor in held.values()),
        "sha256": digest(numbers),
    }


@torch.no_grad()
def network_answers(directory: Path, given: Answers, said: Answers, name: str) -> None:
    """Everything that needs weights, for every question of one checkpoint."""
    config = settings(directory, mapped=True)
    policy = MolmoAct2Policy(config).eval()
    said.facts[f"{name}/weights"] = loading(policy, directory)
    pack, unpack = make_molmoact2_pre_post_processors(policy.config)
    raw, noise = policy.model.config, torch.from_numpy(given.arrays["noise"])
    block, width = raw.action_token_start_id, raw.num_action_tokens
    for i in range(len(SIZES)):
        frames, state = given.arrays[f"frames/{i}"], given.arrays["state"][ASKED[i]]
        batch = pack(observed(frames, state, TASKS[0]))
        inputs = policy._model_inputs(batch)
        forced = torch.from_numpy(given.arrays["forced"][i])
        tail = torch.cat([torch.tensor([raw.action_start_token_id]), forced[:-1] + block])[None]
        longer = {
            **inputs,
            "input_ids": torch.cat([inputs["input_ids"], tail], 1),
            "attention_mask": torch.ones(1, inputs["input_ids"].shape[1] + tail.shape[1], dtype=torch.long),
            "token_type_ids": torch.cat([inputs["token_type_ids"], torch.zeros_like(tail)], 1),
        }
        patches = inputs["pixel_values"].shape[1]
        pooling, tokens = inputs["image_token_pooling"], inputs["image_token_pooling"].shape[0] // len(CAMERAS)
        first = torch.arange(len(CAMERAS)).repeat_interleave(tokens)[:, None] * patches
        written = policy.predict_action_chunk(batch, inference_action_mode="discrete")
        with given_noise(noise[i : i + 1]):
            flown = policy.predict_action_chunk(batch, inference_action_mode="continuous")
        floats = {key: torch.from_numpy(f).permute(2, 0, 1) / 255.0 for key, f in zip(PICTURES, frames, strict=True)}
        said.arrays |= {
            f"{name}/prompt_ids/{i}": inputs["input_ids"][0].numpy(),
            f"{name}/both_ways/{i}": inputs["token_type_ids"][0].long().numpy(),
            f"{name}/pixels/{i}": inputs["pixel_values"].numpy(),
            f"{name}/pixels_of_floats/{i}": pack({STATE: torch.from_numpy(state), **floats, "task": TASKS[0]})[
                "pixel_values"
            ].numpy(),
            # LeRobot counts patches a picture, transformers over all of them.
            f"{name}/pooling/{i}": torch.where(pooling >= 0, pooling + first, pooling).numpy(),
            f"{name}/prompt_logits/{i}": policy.model(**inputs, use_cache=True).logits[0].numpy(),
            f"{name}/forced_logits/{i}": policy.model(**longer, use_cache=True)
            .logits[0, -len(forced) :, block : block + width]
            .numpy(),
            f"{name}/token_chunk/{i}": written[0].clamp(-1, 1).numpy(),
            f"{name}/token_degrees/{i}": unpack(written)[0].numpy(),
            f"{name}/flow_chunk/{i}": flown[0].numpy(),
            f"{name}/flow_degrees/{i}": unpack(flown)[0].numpy(),
        }
    if name == CHECKPOINTS[0]:
        codec_answers(policy, given, said)


def prompt_answers(directory: Path, given: Answers, said: Answers) -> None:
    """Prompt ids of every task under ordinary and extreme states."""
    pack, _ = make_molmoact2_pre_post_processors(settings(directory, mapped=True))
    for k, task in enumerate(TASKS):
        rows = [pack(observed(given.arrays["frames/0"], given.arrays["state"][n], task)) for n in SPOKEN[k]]
        said.arrays[f"task_ids/{k}"] = torch.cat([row["input_ids"] for row in rows]).numpy()


def table_answers(root: Path, given: Answers, said: Answers) -> None:
    """States through every step before the prompt is packed, actions through every step after the network."""
    for name, mapped in TABLES.items():
        pack, unpack = make_molmoact2_pre_post_processors(settings(root / name, mapped=mapped))
        transition = pack.to_transition({STATE: torch.from_numpy(given.arrays["state"])})
        for step in pack.steps[:-2]:  # packing and moving to a device are the last two
            transition = step(transition)
        state = transition[TransitionKey.OBSERVATION][STATE].numpy()
        rows = [_build_discrete_state_string(row, 256) for row in state]
        said.arrays |= {
            f"{name}/state": state,
            f"{name}/state_bins": np.array([[int(t.split("_")[1]) for t in row[14:-12].split("><")] for row in rows]),
            f"{name}/action": unpack(torch.from_numpy(given.arrays["action"])).numpy(),
        }


def codec_answers(policy: MolmoAct2Policy, given: Answers, said: Answers) -> None:
    """Streams of chunks, and what streams mean."""
    codec = UniversalActionProcessor.from_pretrained_local(policy.config.discrete_action_tokenizer)
    said.facts["labels"] = [[int(b) for b in bins] for bins in codec(given.arrays["chunk"])]
    raised = []
    for n, ids in enumerate(given.facts["streams"]):
        try:
            chunk = policy._decode_discrete_action_chunk(torch.tensor([ids]), action_dim=6)[0].clamp(-1, 1).numpy()
        except RuntimeError:
            chunk = None
        raised.append(chunk is None)
        if chunk is not None:
            said.arrays[f"stream/{n}"] = chunk
    said.facts["streams_without_bins"] = raised


def main(root: Path) -> None:
    """Answer the questions in a directory that our side has filled."""
    torch.set_num_threads(1)
    given, said = Answers.load(root / "questions"), Answers()
    prompt_answers(root / "release", given, said)
    table_answers(root, given, said)
    for name in CHECKPOINTS:
        network_answers(root / name, given, said, name)
    said.facts["versions"] = versions("lerobot", "torch", "torchvision", "transformers", "tokenizers", "numpy", "scipy")
    said.save(root / "theirs")
    print(f"{len(said.arrays)} arrays of LeRobot's in {root}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
