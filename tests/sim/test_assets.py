"""Simplified meshes: close to their source, cached, rebuilt when the cache is bad."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trimesh
from scipy.spatial import KDTree

from vla_rl import paths
from vla_rl.errors import MachineError
from vla_rl.sim import assets

SMALL = ("motor_holder_so101_wrist_v1",)
MAX_DEVIATION_MM = 1.0


def visual_names() -> tuple[str, ...]:
    stems = [path.stem for path in sorted((assets.robot_dir() / "assets").glob("*.stl"))]
    return tuple(s for s in stems if "gripper" not in s or s == "wrist_roll_follower_so101_v1")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLA_RL_CACHE", str(tmp_path))
    return tmp_path


def farthest_mm(points: np.ndarray, surface: trimesh.Trimesh) -> float:
    """Distance of the farthest of `points` to a dense sample of `surface`: an upper bound of the true one."""
    sampled = trimesh.sample.sample_surface(surface, 400_000, seed=1)[0]
    tree = KDTree(np.vstack([sampled, surface.vertices]))
    return 1e3 * float(tree.query(points)[0].max())


# The fingers, the motor (five times in the model) and the part with the largest deviation: what the cameras see most.
SEEN_MOST = ("sts3215_03a_v1", "wrist_roll_follower_so101_v1", "moving_jaw_so101_v1")


@pytest.mark.parametrize(
    "name", [n if n in SEEN_MOST else pytest.param(n, marks=pytest.mark.slow) for n in visual_names()]
)
def test_a_simplified_surface_is_within_a_millimetre_both_ways(name: str) -> None:
    path = assets.robot_dir() / "assets" / f"{name}.stl"
    raw, light_mesh = trimesh.load_mesh(path, process=False), assets.simplify(path)
    raw.merge_vertices()
    light = trimesh.Trimesh(light_mesh.vertices_V3, light_mesh.faces_F3, process=False)
    assert len(light.faces) < 0.6 * len(raw.faces)
    assert farthest_mm(np.asarray(raw.vertices), light) <= MAX_DEVIATION_MM
    inner = trimesh.sample.sample_surface(light, 10_000, seed=2)[0]
    assert farthest_mm(np.vstack([inner, light.vertices]), raw) <= MAX_DEVIATION_MM


def test_a_second_call_reads_what_the_first_one_wrote(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = assets.light_meshes(SMALL)
    monkeypatch.setattr(assets, "simplify", lambda path: pytest.fail("simplified again"))
    second = assets.light_meshes(SMALL)
    np.testing.assert_array_equal(first[SMALL[0]].vertices_V3, second[SMALL[0]].vertices_V3)
    assert [path.suffix for path in own_cache.iterdir()] == [".npz"]


def test_packaged_meshes_need_neither_the_cache_nor_the_libraries(
    own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assets.light_meshes(SMALL)[SMALL[0]]
    packaged = tmp_path_factory.mktemp("meshes")
    assets.cache_file(SMALL).rename(packaged / assets.cache_file(SMALL).name)
    monkeypatch.setitem(sys.modules, "manifold3d", None)
    with pytest.raises(MachineError, match="manifold3d is missing"):
        assets.light_meshes(SMALL)
    monkeypatch.setattr(paths, "packaged_meshes", lambda: packaged)
    np.testing.assert_array_equal(assets.light_meshes(SMALL)[SMALL[0]].faces_F3, made.faces_F3)
    assert not list(own_cache.iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_corrupt_cache_is_rebuilt(own_cache: Path, damage: str) -> None:
    good = assets.light_meshes(SMALL)[SMALL[0]]
    path = assets.cache_file(SMALL)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(
        {"cut": data[: len(data) // 3], "flip": bytes(data), "empty": b"", "text": b"not a zip file"}[damage]
    )
    again = assets.light_meshes(SMALL)[SMALL[0]]
    np.testing.assert_array_equal(good.faces_F3, again.faces_F3)
    assert assets._read(path, SMALL) is not None


def test_an_unwritable_cache_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("VLA_RL_CACHE", str(blocked))
    assert len(assets.light_meshes(SMALL)[SMALL[0]].faces_F3) > 500


def test_two_processes_may_fill_the_cache_at_once_and_agree(own_cache: Path) -> None:
    code = (
        "import hashlib; from vla_rl.sim import assets; name = 'motor_holder_so101_wrist_v1';"
        "m = assets.light_meshes((name,))[name];"
        "print(hashlib.sha256(m.vertices_V3.tobytes() + m.faces_F3.tobytes()).hexdigest())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    digests = {process.communicate(timeout=60)[0].strip() for process in both}
    assert all(process.returncode == 0 for process in both) and len(digests) == 1 and len(digests.pop()) == 64
    assert [path.suffix for path in own_cache.iterdir()] == [".npz"]


def test_finding_the_robot_imports_nothing_heavy() -> None:
    code = (
        "import sys; from vla_rl.sim import assets; assets.robot_digest();"
        "print('so101_nexus' in sys.modules, 'mujoco' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
