"""The compiled world: upstream's physics, contact settings that hold a boat, light meshes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from vla_rl.sim import assets
from vla_rl.sim.frames import JOINTS, to_degrees, to_radians
from vla_rl.sim.gl import mujoco
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


@pytest.fixture(scope="module")
def documented() -> Scene:
    return shared_scene("sim100")


def test_the_documented_servo_is_in_every_joint(documented: Scene) -> None:
    model = documented.model
    np.testing.assert_array_equal(model.actuator_gainprm[:, 0], 108.18)
    np.testing.assert_array_equal(model.actuator_biasprm[:, 1:3], np.tile([-108.18, -13.377], (6, 1)))
    np.testing.assert_array_equal(model.actuator_forcerange, np.tile([-3.478, 3.478], (6, 1)))
    for values, expected in (
        (model.dof_damping, 0.722),
        (model.dof_frictionloss, 0.0183),
        (model.dof_armature, 0.2045),
    ):
        np.testing.assert_array_equal(values[:6], expected)
    assert model.opt.timestep == 0.005


def test_without_a_servo_of_its_own_a_protocol_has_the_source_models(scene: Scene) -> None:
    source = mujoco.MjModel.from_xml_path(str(assets.robot_dir() / "so101.xml"))
    for name in ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange"):
        np.testing.assert_array_equal(getattr(scene.model, name), getattr(source, name))
    for name in ("dof_damping", "dof_frictionloss", "dof_armature"):
        np.testing.assert_array_equal(getattr(scene.model, name)[:6], getattr(source, name))


def test_the_documented_joint_limits_hold_for_joint_and_servo(documented: Scene, scene: Scene) -> None:
    for i, joint in enumerate(JOINTS):
        limit_deg = {"shoulder_lift": 110.0, "elbow_flex": 100.0}.get(joint)
        for here, stock in (
            (documented.model.joint(joint).range, scene.model.joint(joint).range),
            (documented.model.actuator_ctrlrange[i], scene.model.actuator_ctrlrange[i]),
        ):
            expected = stock if limit_deg is None else np.deg2rad([-limit_deg, limit_deg])
            np.testing.assert_allclose(here, expected, atol=1e-12)


def settled(scene: Scene) -> Any:
    data = mujoco.MjData(scene.model)
    scene.park(data, scene.protocol.disk_xy_m, None)
    mujoco.mj_forward(scene.model, data)
    return data


def test_the_documented_home_rests_as_documented(documented: Scene) -> None:
    """Documented: the servo aims the elbow at 97 degrees, the jaw tip stands on the table and the elbow at about 90."""
    data = settled(documented)
    assert to_degrees(data.qpos[:6])[2] == pytest.approx(90.4, abs=2.0)
    pairs = [{documented.body_of_geom_G[g] for g in contact.geom} for contact in data.contact]
    assert {0, documented.model.body("gripper").id} in pairs
    assert np.abs(data.qvel[:6]).max() < 0.1


@pytest.mark.parametrize("name", ["sim100", "sim100b"])
def test_the_parked_jaws_are_where_the_protocol_says(name: str) -> None:
    data = settled(shared_scene(name))
    tips = [data.geom(f"{jaw}_jaw_sph_tip1").xpos[:2] for jaw in ("fixed", "moving")]
    np.testing.assert_allclose(np.mean(tips, axis=0), shared_scene(name).protocol.parked_jaws_m, atol=0.015)


def test_a_movable_disk_is_the_same_disk_and_counts_as_the_world(scene: Scene) -> None:
    movable = shared_scene("sim100b-spawn2")
    assert scene.disk_is_fixed and not movable.disk_is_fixed
    fixed_disk, disk = scene.model.geom("disk"), movable.model.geom("disk")
    for name in ("type", "size", "rgba", "friction", "contype", "conaffinity", "condim", "solref", "solimp"):
        np.testing.assert_array_equal(getattr(disk, name), getattr(fixed_disk, name), err_msg=name)
    assert disk.pos[2] == fixed_disk.pos[2] and movable.body_of_geom_G[disk.id] == 0


def test_no_two_protocols_share_a_digest_even_under_one_name() -> None:
    """Results of different protocols cannot be mixed: whatever keeps a scene's hash tells them apart."""
    digests = {scene_digest(protocol) for protocol in PROTOCOLS.values()}
    nameless = {scene_digest(dataclasses.replace(protocol, name="")) for protocol in PROTOCOLS.values()}
    assert len(digests) == len(nameless) == len(PROTOCOLS) and not digests & nameless


def test_the_digest_of_spawn_v2_covers_the_reach_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: scene_digest(PROTOCOLS[name]) for name in ("sim100b", "sim100b-spawn2")}
    monkeypatch.setattr("vla_rl.sim.scene.mask_digest", lambda: "another mask")
    assert scene_digest(PROTOCOLS["sim100b"]) == before["sim100b"]
    assert scene_digest(PROTOCOLS["sim100b-spawn2"]) != before["sim100b-spawn2"]


def test_the_digest_changes_with_any_constant() -> None:
    assert scene_digest(SIM100B) == scene_digest(SIM100B)
    assert scene_digest(SIM100B) != scene_digest(dataclasses.replace(SIM100B, disk_top_m=0.013))


def test_degrees_round_trip() -> None:
    degrees = np.array([[-110.0, 30.0, 0.0, 95.0, -157.0, 100.0]])
    np.testing.assert_allclose(to_degrees(to_radians(degrees)), degrees)
    assert to_radians(np.full(6, 180.0))[0] == np.pi
