"""Does the `lerobot` package read what `vla-rl demos` writes, and the other way round? Run by `make check-lerobot`.

`lerobot` pins other versions of the same packages, so it lives in an environment of its own and this file is run in
both, in this order:

    python tests/sft/check_with_lerobot.py record DIR     # in the project's environment
    python tests/sft/check_with_lerobot.py check DIR      # where `pip install 'lerobot[dataset]'` was done
    python tests/sft/check_with_lerobot.py read DIR       # in the project's environment

`record` keeps, beside the dataset, what the recorder held before anything was encoded. `check` compares every pixel,
state and action that `LeRobotDataset` gives back with it, bit for bit, lets LeRobot's own tools loose on the files, and
writes a dataset of its own. `read` opens that one, and one that the tools have made of ours, for training.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

SEEDS, PX, TASK = "100003-100006", 112, "put the boat on the disk"
CAMERAS = ("observation.images.top", "observation.images.wrist")
JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


def record(root: Path) -> None:
    """Two shards of four seeds by two workers, and the same episodes once more, unencoded."""
    from vla_rl.config.compose import compose
    from vla_rl.sft import lerobot
    from vla_rl.sft.demos import record_demos
    from vla_rl.sft.recipe import ExpertJobs, expert_recipe
    from vla_rl.sft.sources import open_source

    env = compose("demos", [f"sim.image_px={PX}"]).component_spec("sim")
    jobs = ExpertJobs(
        SEEDS,
        noise_share=0.5,
        miss_share=0.35,
        noise_deg=(0.5, 2.0),
        start_jitter_deg=3.0,
        calibration_error_deg=(0.0,) * 6,
    )
    recipe = expert_recipe(env, jobs, task=TASK, success_only=True, shard_episodes=2)
    record_demos(out_dir=root / "dataset", recipe=recipe, workers=2, on_event=lambda event: None, max_wall_s=None)

    frames: list[np.ndarray] = []
    encode, lerobot.encode_png = lerobot.encode_png, lambda picture: frames.append(picture.copy()) or b""
    source, kept = open_source(recipe), []
    for seed in recipe.jobs():
        frames.clear()
        episode = source.record(seed)
        if episode.failure is None:
            pictures = np.stack(frames).reshape(len(episode), 2, PX, PX, 3)
            kept.append((pictures, episode.state_deg, episode.targets_deg, episode.taught_T))
    lerobot.encode_png = encode
    names = ("frames", "state", "action", "taught")
    arrays = {name: np.concatenate(parts) for name, parts in zip(names, zip(*kept, strict=True), strict=True)}
    np.savez(root / "expected.npz", lengths=[len(part[0]) for part in kept], **arrays)
    print(f"recorded {len(kept)} episodes, {len(arrays['taught'])} frames")


def check(root: Path) -> None:
    """Raises AssertionError at the first difference."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_HOME", str(root / "hf"))
    import torch
    from lerobot.datasets.dataset_tools import delete_episodes, split_dataset
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    expected, directory = np.load(root / "expected.npz"), root / "dataset"
    lengths, total = expected["lengths"], int(expected["lengths"].sum())
    ends = np.cumsum(lengths)
    dataset = LeRobotDataset("local/demos", root=directory)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (len(lengths), total, 30)
    assert tuple(dataset.meta.camera_keys) == CAMERAS
    action = expected["action"].astype(np.float32)
    for index in range(total):
        item = dataset[index]
        episode = int(np.searchsorted(ends, index, side="right"))
        first, last = ends[episode] - lengths[episode], ends[episode] - 1
        for camera, picture in zip(CAMERAS, expected["frames"][index], strict=True):
            pixels = item[camera] * 255.0  # LeRobot gives float32 in 0..1
            assert torch.equal(pixels.round().to(torch.uint8), torch.from_numpy(picture).permute(2, 0, 1)), index
            assert (pixels - pixels.round()).abs().max() < 1e-4
        assert np.array_equal(item["observation.state"].numpy(), expected["state"][index].astype(np.float32))
        assert np.array_equal(item["action"].numpy(), action[index])
        assert (int(item["episode_index"]), int(item["index"])) == (episode, index)
        assert int(item["frame_index"]) == index - first
        assert abs(float(item["timestamp"]) - (index - first) / 30) < 1e-5
        assert bool(item["taught"]) == expected["taught"][index]
        assert bool(item["next.done"]) == (index == last)
        assert item["task"] == TASK
    chunks = LeRobotDataset(
        "local/demos", root=directory, delta_timestamps={"action": [tick / 30 for tick in range(30)]}
    )
    for index in (0, 17, ends[0] - 5, ends[0], total - 1):  # a chunk ends with its episode, as in our training windows
        last = ends[np.searchsorted(ends, index, side="right")] - 1
        item = chunks[int(index)]
        assert np.array_equal(item["action"].numpy(), action[np.minimum(index + np.arange(30), last)])
        assert np.array_equal(item["action_is_pad"].numpy(), index + np.arange(30) > last)
    batch = next(iter(torch.utils.data.DataLoader(chunks, batch_size=8, shuffle=True)))
    assert tuple(batch["action"].shape) == (8, 30, 6)
    mean = dataset.meta.stats["action"]["mean"]
    assert np.allclose(mean, action.astype(np.float64).mean(axis=0))
    assert np.allclose(dataset.meta.stats[CAMERAS[0]]["mean"].ravel(), expected["frames"][:, 0].mean((0, 1, 2)) / 255)
    one = LeRobotDataset("local/demos", root=directory, episodes=[1])
    assert one.num_frames == lengths[1] and int(one[0]["episode_index"]) == 1
    shorter = delete_episodes(dataset, [0], output_dir=root / "shorter", repo_id="local/shorter")
    assert shorter.num_frames == total - lengths[0]
    parts = split_dataset(dataset, {"train": [0], "val": list(range(1, len(lengths)))}, output_dir=root / "split")
    assert sum(part.num_frames for part in parts.values()) == total
    _write(root / "theirs", expected)
    print(json.dumps({"lerobot_reads": True, "episodes": len(lengths), "frames": total}))


def _write(root: Path, expected: Mapping[str, np.ndarray]) -> None:
    """The first 40 frames as LeRobot itself stores two episodes."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    joints = {"dtype": "float32", "shape": (6,), "names": [f"{joint}.pos" for joint in JOINTS]}
    picture = {"dtype": "image", "shape": (PX, PX, 3), "names": ["height", "width", "channels"]}
    features = {"observation.state": joints, "action": joints, **dict.fromkeys(CAMERAS, picture)}
    theirs = LeRobotDataset.create("local/theirs", fps=30, features=features, root=root, use_videos=False)
    for index in range(40):
        frame = dict(zip(CAMERAS, expected["frames"][index], strict=True))
        frame |= {"observation.state": expected["state"][index].astype(np.float32)}
        frame |= {"action": expected["action"][index].astype(np.float32)}
        theirs.add_frame({**frame, "task": TASK})
        if index in (24, 39):
            theirs.save_episode()
    theirs.finalize()


def read(root: Path) -> None:
    """Raises AssertionError at the first difference."""
    from vla_rl.sft.dataset import open_demonstrations
    from vla_rl.sft.frames import decode_windows

    expected = np.load(root / "expected.npz")
    action, taught = expected["action"].astype(np.float32), expected["taught"]
    second = int(expected["lengths"][0])
    for name, frames, last in (
        ("theirs", np.arange(40), np.repeat([24, 39], [25, 15])),
        ("shorter", second + np.flatnonzero(taught[second:]), None),
    ):
        demos = open_demonstrations(root / name, chunk_ticks=30, frame_stride=1)
        assert len(demos) == len(frames) and demos.dataset.task == TASK
        assert np.array_equal(demos.state_deg, expected["state"][frames].astype(np.float32))
        if last is not None:
            assert np.array_equal(demos.targets_deg, action[np.minimum(frames[:, None] + np.arange(30), last[:, None])])
        blocks = decode_windows(demos.dataset, demos.frame_N, image_px=PX, threads=2, taken=lambda data: None)
        assert np.array_equal(np.concatenate(list(blocks)), expected["frames"][frames])
    print(json.dumps({"vla_rl_reads": True}))


if __name__ == "__main__":
    {"record": record, "check": check, "read": read}[sys.argv[1]](Path(sys.argv[2]))
