"""The compiled world: upstream's physics, contact settings that hold a boat, light meshes."""

from __future__ import annotations

import numpy as np
import pytest

from vla_rl.sim import assets
from vla_rl.sim.frames import JOINTS, to_degrees, to_radians
from vla_rl.sim.gl import mujoco
from vla_rl.sim.look import PLAIN
from vla_rl.sim.protocol import PROTOCOLS
from vla_rl.sim.scene import Scene, scene_digest, shared_scene

SIM100B = PROTOCOLS["sim100b"]


@pytest.fixture(scope="module")
def scene() -> Scene:
    return shared_scene("sim100b")


def test_contacts_are_the_ones_that_hold_a_boat(scene: Scene) -> None:
    option = scene.model.opt
    assert option.cone == mujoco.mjtCone.mjCONE_ELLIPTIC and option.impratio == 10
    assert option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST and option.timestep == 1 / 240


def test_the_robots_physics_is_that_of_the_source_model(scene: Scene) -> None:
    source = mujoco.MjModel.from_xml_path(str(assets.robot_dir() / "so101.xml"))
    for i in range(1, source.nbody):
        mine = scene.model.body(source.body(i).name)
        for name in ("mass", "inertia", "ipos", "iquat"):
            np.testing.assert_array_equal(
                getattr(mine, name), getattr(source.body(i), name), err_msg=f"{mine.name}.{name}"
            )
    collides = [(g, source.geom(g).dataid[0]) for g in range(source.ngeom) if source.geom_contype[g]]
    assert sum(mesh >= 0 for _, mesh in collides) == 3
    furniture = int((scene.model.geom_bodyid == 0).sum())  # the world's own geoms come first; the source has none
    for source_geom, mesh in collides:
        geom = source_geom + furniture
        assert scene.model.geom_contype[geom] and scene.model.geom_type[geom] == source.geom_type[source_geom]
        if mesh >= 0:
            assert scene.model.mesh(scene.model.geom_dataid[geom]).facenum == source.mesh(mesh).facenum


def test_servo_targets_stay_inside_the_joint_ranges(scene: Scene) -> None:
    for i, joint in enumerate(JOINTS):
        assert scene.model.actuator(i).name == joint
        assert scene.model.actuator_ctrlrange[i, 1] <= scene.model.joint(joint).range[1]


def test_boat_and_disk_have_the_documented_measures(scene: Scene) -> None:
    assert scene.model.body("boat").subtreemass[0] == pytest.approx(0.040)
    disk = scene.model.geom("disk")
    assert disk.size[0] == 0.040 and disk.pos[2] + disk.size[1] == pytest.approx(0.012)
    np.testing.assert_array_equal(disk.pos[:2], (0.22, 0.11))


def test_boat_sides_are_vertical(scene: Scene) -> None:
    """Flared sides tip the boat at release: every part may be turned about z only."""
    for geom in range(scene.model.ngeom):
        if scene.model.geom_bodyid[geom] == scene.boat_body:
            np.testing.assert_allclose(scene.model.geom_quat[geom][1:3], 0.0)
            assert scene.model.geom_type[geom] in (int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_CYLINDER))


def test_at_most_60k_faces_are_in_the_model(scene: Scene) -> None:
    meshes = scene.model.geom_dataid[scene.model.geom_dataid >= 0]
    assert scene.model.mesh_facenum[meshes].sum() <= 60_000


def test_the_digest_changes_with_any_constant() -> None:
    import dataclasses

    assert scene_digest(SIM100B, PLAIN) == scene_digest(SIM100B, PLAIN)
    assert scene_digest(SIM100B, PLAIN) != scene_digest(dataclasses.replace(SIM100B, disk_top_m=0.013), PLAIN)


def test_degrees_round_trip() -> None:
    degrees = np.array([[-110.0, 30.0, 0.0, 95.0, -157.0, 100.0]])
    np.testing.assert_allclose(to_degrees(to_radians(degrees)), degrees)
    assert to_radians(np.full(6, 180.0))[0] == np.pi
