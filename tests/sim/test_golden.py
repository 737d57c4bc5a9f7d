"""`sim100b` is what it was when the bundled base was trained on it: the same bits of physics, the same pictures.

`golden/sim100b.json` and `golden/sim100b_pictures.npz` were written by this file run as a script
(``PYTHONPATH=src python tests/sim/test_golden.py``) before protocols could differ in anything but their name. They are
not to be rewritten together with a change of the code: a changed figure here means another protocol. (Only `final_cm`
was, by 1e-12 cm, when distances came to lie on a grid; the digests of qpos and the pictures are the first ones.)
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS
from vla_rl.sim.gl import mujoco

GOLDEN = Path(__file__).with_name("golden")
SEEDS, PX = (300, 305), 112
# tick, then joint targets in degrees: down to the boat, close on it, push it, sweep away and rise.
WAYPOINTS = np.array(
    [
        (0, 0, -90, 50, 75, 0, 0),
        (20, 0, -20, 40, 60, 0, 60),
        (40, -8, 20, 25, 50, 20, 60),
        (60, -8, 20, 25, 50, 20, -10),
        (80, 8, 0, 20, 60, 20, -10),
        (100, -25, 10, 20, 55, -30, 30),
        (120, 10, -60, 40, 70, 0, 10),
    ],
    dtype=np.float64,
)
# Pictures of another rasteriser are compared by the mean of each 8 x 8 block, in counts of 255.
BLOCK, MAX_BLOCK_DIFFERENCE, MEAN_BLOCK_DIFFERENCE = 8, 25.0, 1.5


def targets_deg() -> np.ndarray:
    """float64 [120, 6], straight between the waypoints."""
    ticks = np.arange(WAYPOINTS[-1, 0])
    return np.stack([np.interp(ticks, WAYPOINTS[:, 0], WAYPOINTS[:, j]) for j in range(1, 7)], axis=1)


def pictures(env: BoatToDisk) -> list[np.ndarray]:
    return [env.get_frame(camera, PX, PX).copy() for camera in CAMERAS]


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def play(env: BoatToDisk, seed: int, *, render: bool) -> tuple[str, list[np.ndarray], dict[str, Any]]:
    """Digest of qpos after reset and after every tick, the pictures at both ends, and what happened to the boat."""
    env.begin(seed)
    digest, seen = hashlib.sha256(env.data.qpos.tobytes()), pictures(env) if render else []
    for target_deg in targets_deg():
        env.tick(target_deg)
        digest.update(env.data.qpos.tobytes())
    metrics = env.metrics()
    outcome = {"touched": metrics.touched, "pinched": metrics.pinched, "final_cm": metrics.final_cm}
    return digest.hexdigest(), seen + (pictures(env) if render else []), outcome


def platform_of_physics() -> dict[str, str]:
    """What the bits of a trajectory depend on besides the code: MuJoCo, and the sines of the C library."""
    return {"mujoco": mujoco.__version__, "machine": platform.machine(), "libc": " ".join(platform.libc_ver())}


def gl_renderer() -> str:
    """The rasteriser's own name; a context must be current, as it is after any picture."""
    from OpenGL import GL

    return GL.glGetString(GL.GL_RENDERER).decode()


def blocks(picture_HW3: np.ndarray) -> np.ndarray:
    side = PX // BLOCK
    return picture_HW3.reshape(side, BLOCK, side, BLOCK, 3).mean(axis=(1, 3))


def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "sim100b.json").read_text())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_physics_of_sim100b_is_bit_identical_to_the_recorded_one(make_env, seed: int) -> None:
    recorded, here = golden(), platform_of_physics()
    if recorded["physics_platform"] != here:
        pytest.skip(f"recorded with {recorded['physics_platform']}, this is {here}: bits differ between those")
    digest, _, outcome = play(make_env(terminate_on="never"), seed, render=False)
    assert recorded["episodes"][str(seed)]["outcome"] == outcome
    assert recorded["episodes"][str(seed)]["qpos_sha256"] == digest


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plain_pictures_of_sim100b_are_the_recorded_ones(make_env, seed: int) -> None:
    recorded = golden()
    _, seen, _ = play(make_env(terminate_on="never"), seed, render=True)
    same_world = recorded["physics_platform"] == platform_of_physics()
    if same_world and recorded["gl_renderer"] == gl_renderer():
        assert [sha256(picture) for picture in seen] == recorded["episodes"][str(seed)]["pictures_sha256"]
        return
    # Another rasteriser; on another platform only the pictures of the start show the same moment.
    stored = np.load(GOLDEN / "sim100b_pictures.npz")[f"seed{seed}"]
    for picture, reference in list(zip(seen, stored, strict=True))[: None if same_world else len(CAMERAS)]:
        difference = np.abs(blocks(picture) - blocks(reference))
        assert difference.max() < MAX_BLOCK_DIFFERENCE and difference.mean() < MEAN_BLOCK_DIFFERENCE


def test_the_picture_comparison_notices_a_moved_boat(make_env) -> None:
    """The tolerance for other rasterisers is tight enough: another seed's start is refused."""
    stored = np.load(GOLDEN / "sim100b_pictures.npz")
    difference = np.abs(blocks(stored["seed300"][0]) - blocks(stored["seed305"][0]))
    assert difference.max() > MAX_BLOCK_DIFFERENCE


def record() -> None:
    """Write the golden files."""
    from conftest import SETTINGS

    env, episodes, stored = BoatToDisk(**(SETTINGS | {"terminate_on": "never"})), {}, {}
    for seed in SEEDS:
        digest, seen, outcome = play(env, seed, render=True)
        episodes[str(seed)] = {
            "qpos_sha256": digest,
            "outcome": outcome,
            "pictures_sha256": [sha256(picture) for picture in seen],
        }
        stored[f"seed{seed}"] = np.stack(seen)
    GOLDEN.mkdir(exist_ok=True)
    content = {"physics_platform": platform_of_physics(), "gl_renderer": gl_renderer(), "episodes": episodes}
    (GOLDEN / "sim100b.json").write_text(json.dumps(content, indent=1) + "\n")
    np.savez_compressed(GOLDEN / "sim100b_pictures.npz", **stored)


if __name__ == "__main__":
    record()
