"""The robot's files: found in the installed `so101-nexus` distribution, its visual meshes simplified once per machine.

In: the Menagerie SO-101 of that distribution (XML and STL, Apache-2.0). Out: its path, a digest of its files, and light
versions of the meshes that only cameras see, kept in the user cache. The distribution itself is never imported (it
pulls in large dependencies), and meshes that physics uses are never touched.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_rl import paths
from vla_rl.errors import MachineError

# Each pass may move the surface by this much; going there in steps gives fewer faces than one pass of the last
# tolerance.
SIMPLIFY_PASSES_MM = (0.05, 0.1, 0.2)
SIMPLIFY_VERSION = 1


@dataclass(frozen=True)
class Mesh:
    """A triangle mesh: vertices_V3 float32 [V, 3] in metres, faces_F3 int32 [F, 3]."""

    vertices_V3: np.ndarray
    faces_F3: np.ndarray


@functools.cache
def robot_dir() -> Path:
    """The folder of the Menagerie SO-101 (``so101.xml`` and ``assets/*.stl``).

    Raises:
        MachineError: `so101-nexus` is not installed, or does not hold the model.
    """
    remedy = "pip install 'so101-nexus>=0.10' (or repeat: make setup)"
    spec = importlib.util.find_spec("so101_nexus")
    if spec is None or not spec.submodule_search_locations:
        raise MachineError("the SO-101 model is missing: so101-nexus is not installed", remedy=remedy)
    folder = Path(next(iter(spec.submodule_search_locations))) / "assets" / "SO101_menagerie"
    if not (folder / "so101.xml").is_file():
        raise MachineError("this so101-nexus does not hold the Menagerie SO-101", where=str(folder), remedy=remedy)
    return folder


@functools.cache
def robot_digest() -> str:
    """SHA-256 over the names and bytes of the model's XML and meshes."""
    folder, digest = robot_dir(), hashlib.sha256()
    for path in [folder / "so101.xml", *sorted((folder / "assets").glob("*.stl"))]:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def simplification() -> dict[str, object]:
    """The parameters that decide the simplified meshes, JSON-able."""
    return {"method": "manifold3d", "passes_mm": list(SIMPLIFY_PASSES_MM), "version": SIMPLIFY_VERSION}


def simplify(path: Path) -> Mesh:
    """A light version of one STL file.

    A mesh that is no closed manifold is returned as it is (vertices merged). Deterministic.

    Raises:
        MachineError: the libraries for it were left out of this installation.
    """
    try:
        import manifold3d
        import trimesh
    except ImportError as error:
        raise MachineError(
            f"{path.name} has no simplified version here, and {error.name} is missing to make one",
            where=str(paths.packaged_meshes()),
            remedy="pip install manifold3d trimesh, or copy the cache of a machine that has them (VLA_RL_CACHE)",
        ) from error
    raw = trimesh.load_mesh(path, process=False)
    raw.merge_vertices()
    vertices_V3, faces_F3 = np.asarray(raw.vertices, np.float32), np.asarray(raw.faces, np.int32)
    solid = manifold3d.Manifold(manifold3d.Mesh(vertices_V3 * 1e3, faces_F3.astype(np.uint32)))
    if solid.status() != manifold3d.Error.NoError:
        return Mesh(vertices_V3, faces_F3)
    for tolerance_mm in SIMPLIFY_PASSES_MM:
        solid = solid.simplify(tolerance_mm)
    light = solid.to_mesh()
    return Mesh(np.asarray(light.vert_properties[:, :3] / 1e3, np.float32), np.asarray(light.tri_verts, np.int32))


def cache_file(names: tuple[str, ...]) -> Path:
    """Where the simplified meshes `names` are kept: the name is a digest of source, parameters and mesh names."""
    key = json.dumps([robot_digest(), simplification(), sorted(names)], sort_keys=True)
    return paths.cache_dir() / f"so101-visual-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"


def _read(path: Path, names: tuple[str, ...]) -> dict[str, Mesh] | None:
    """The cached meshes, or None when the file is missing, cut short or corrupt (zip members carry a checksum)."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: Mesh(stored[f"{name}/vertices"], stored[f"{name}/faces"]) for name in names}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, meshes: dict[str, Mesh]) -> None:
    """Write beside `path` and rename, so that a reader in another process sees a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{n}/vertices": m.vertices_V3 for n, m in meshes.items()} | {
        f"{n}/faces": m.faces_F3 for n, m in meshes.items()
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def light_meshes(names: tuple[str, ...]) -> dict[str, Mesh]:
    """Simplified versions of the robot's STL files `names` (without ``.stl``): packaged, cached, or made now (2 s).

    Safe with concurrent processes: the work may be done twice, the result is the same and replaced atomically. A cache
    that cannot be written costs the work every time, nothing else.
    """
    path = cache_file(names)
    for place in (paths.packaged_meshes() / path.name, path):
        if (meshes := _read(place, names)) is not None:
            return meshes
    meshes = {name: simplify(robot_dir() / "assets" / f"{name}.stl") for name in names}
    try:
        _write(path, meshes)
    except OSError:
        pass  # a read-only home directory: go on with what is in memory
    return meshes
