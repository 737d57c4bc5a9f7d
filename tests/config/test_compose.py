"""Composition: typed keys, named mistakes, plain output."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from vla_rl import paths
from vla_rl.config.compose import compose, options
from vla_rl.config.keys import check_section, key_help
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import ROOTS, GeometryConfig
from vla_rl.errors import ConfigError


def mistake(*overrides, primary="config"):
    with pytest.raises(ConfigError) as error:
        compose(primary, overrides)
    assert error.value.exit_code == 2
    return str(error.value)


def test_a_mistyped_key_names_its_nearest_match():
    assert "did you mean geometry.seeds?" in mistake("geometry.seds=3")
    assert "did you mean reward.success_bonus?" in mistake("reward.success_bonu=3")
    assert "did you mean reward?" in mistake("rewrd=v1")
    of_another_option = mistake("pool=serial", "pool.workers=2")
    assert "the chosen option of pool has no key 'pool.workers'" in of_another_option
    assert "did you mean" not in of_another_option and "processes, ray, serial" in of_another_option


def test_an_unknown_group_option_lists_the_options():
    message = mistake("reward=v9")
    assert "reward" in message and "v1" in message and "schema_" not in message
    assert "did you mean experiment=quickstart?" in mistake("experiment=quickstrt")


@pytest.mark.parametrize("experiment", ["quickstart", "learning"])
def test_a_group_that_is_named_beside_an_experiment_is_the_one_that_holds(experiment):
    """An experiment chooses options and writes none of their keys, which would win over another option."""
    for option in ("documented", "laptop", "recipe"):
        alone = compose("config", [f"geometry={option}"]).tree["geometry"]
        assert compose("config", [f"experiment={experiment}", f"geometry={option}"]).tree["geometry"] == alone


@pytest.mark.parametrize(
    "override", ["geometry.seeds=abc", "geometry.seeds=2.5", "geometry=3", "optim=null", "optim.lr", "sim.max_ticks=[1"]
)
def test_a_wrong_value_is_one_error_that_names_the_key(override):
    assert override.split("=")[0].split(".")[0] in mistake(override)


@pytest.mark.parametrize("override", ["+geometry.extra=1", "++geometry.seeds=1", "~geometry", "~geometry.seeds"])
def test_keys_can_be_set_but_neither_added_nor_deleted(override):
    assert "adds or deletes" in mistake(override)


def test_seeds_with_commas_need_no_quotes():
    assert compose("eval", ["eval.seeds=300,305-307"]).tree["eval"]["seeds"] == "300,305-307"
    assert compose("eval", ["eval.seeds='300,301'"]).tree["eval"]["seeds"] == "300,301"
    assert compose("config", ["geometry.seeds=4"]).tree["geometry"]["seeds"] == 4
    assert "geometry.seeds" in mistake("geometry.seeds=4,5")


def test_every_missing_value_is_listed():
    assert "sft.demos" in mistake(primary="sft")


def test_a_value_of_the_wrong_type_points_to_the_keys_of_its_own_command():
    assert "`vla-rl train --help-keys`" in mistake("run.seed=abc")
    assert "`vla-rl demos --help-keys`" in mistake("demos.noise_deg=[a]", primary="demos")


def test_every_option_of_every_group_composes_and_is_plain_json():
    root = paths.conf_dir()
    groups = {p.relative_to(root).as_posix(): [] for p in root.rglob("*") if p.is_dir()}
    groups = {group: options(group) for group in sorted(groups)}
    for turn in range(max(map(len, groups.values()))):  # all groups at once, each with its next option
        chosen = [f"{group}={names[turn % len(names)]}" for group, names in groups.items()]
        needed = ["policy.checkpoint=somewhere"] if {"policy=molmoact2", "policy=lerobot"} & set(chosen) else []
        tree = compose("config", [*chosen, *needed]).tree
        assert json.loads(json.dumps(tree)) == tree


def test_the_configuration_tree_has_no_interpolation_that_changes_between_reads():
    for path in paths.conf_dir().rglob("*"):
        if path.is_file():
            assert path.suffix == ".yaml", path
            assert not any(mark in path.read_text() for mark in ("${now", "${hydra", "${oc.env")), path


def test_composing_leaves_a_host_hydra_untouched():
    GlobalHydra.instance().clear()
    compose("config")
    assert not GlobalHydra.instance().is_initialized()


def test_composition_is_independent_of_the_working_directory(tmp_path):
    code = "from vla_rl.config.compose import compose; print(compose('config').digest())"
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert here.stdout == there.stdout


def test_every_key_explains_itself():
    for primary in ROOTS:
        listed = key_help(primary, compose(primary, allow_missing=True).tree)
        assert [path for path, _, text in listed if not text] == [] and len(listed) >= 3


@pytest.mark.parametrize(
    "override",
    [
        "optim.lr=nan",
        "optim.lr=0",
        "optim.beta2=1.5",
        "run.seed=-1",
        "run.steps=-1",
        "eval.slots=0",
        "checkpoint.every=0",
        "checkpoint.keep=-1",
        "geometry.advantage_clip=-1",
        "geometry.min_group_std_cm=nan",
        "loss.weighting=foo",
        "loss.clip_low=2",
        "pool.workers=0",
        "eval.temperature=nan",
        "sim.terminate_on=later",
        "run.device=tpu",
    ],
)
def test_an_impossible_value_is_refused_with_what_it_may_be(override):
    message = mistake(override)
    assert "it must be" in message and override.split("=")[0] in message


def test_a_nested_group_is_chosen_by_its_path_and_its_keys_are_checked_like_any_other():
    look = compose("demos", ["sim/look=lens", "sim.look.noise_counts=3"]).tree["sim"]["look"]
    assert (look["lens"], look["blur_px"], look["noise_counts"]) == ("equidistant", 0.7, 3.0)
    assert "did you mean sim/look=lens?" in mistake("sim/look=lense")
    assert "did you mean sim.look.lens?" in mistake("sim.look.lenz=fitted")
    assert "choose an option with sim/look=" in mistake("sim.look=lens")
    for override in ("sim.look.lens=fish", "sim.look.noise_counts=-1", "sim.look.shadow_strength=nan"):
        message = mistake(override)
        assert "it must be" in message and override.split("=")[0] in message
    listed = {path: value for path, value, _ in key_help("demos", compose("demos", ["sim/look=full"]).tree)}
    assert listed["sim.look.clutter"] == "patches" and "sim.look" not in listed


def test_a_section_from_elsewhere_is_checked_against_its_schema():
    values = dataclasses.asdict(GeometryConfig())
    check_section("geometry", GeometryConfig, values)
    for change, message in (({"draws": 1}, "at least 2"), ({"drawz": 1}, "no key geometry.drawz")):
        with pytest.raises(ConfigError, match=message):
            check_section("geometry", GeometryConfig, values | change)
    with pytest.raises(ConfigError, match="no value for geometry.draws"):
        check_section("geometry", GeometryConfig, {k: v for k, v in values.items() if k != "draws"})


def test_a_key_that_nothing_reads_fails_the_run():
    reader = ConfigReader({"geometry": {**compose("config").tree["geometry"]}, "plugins": []})
    geometry = reader.section("geometry", GeometryConfig)
    for name in GeometryConfig.__dataclass_fields__:
        if name != "advantage_clip":
            getattr(geometry, name)
    with pytest.raises(ConfigError, match="nothing reads geometry.advantage_clip"):
        reader.check_consumed()
    _ = geometry.advantage_clip
    reader.check_consumed()


def test_a_section_is_read_only():
    geometry = compose("config").section("geometry", GeometryConfig)
    with pytest.raises(AttributeError, match="read-only"):
        geometry.seeds = 3


def test_the_digest_changes_with_any_value_and_ignores_what_it_is_told_to():
    base, other, elsewhere = compose("config"), compose("config", ["optim.lr=1e-4"]), compose("config", ["run.dir=x"])
    assert base.digest() != other.digest()
    assert base.digest() != elsewhere.digest() and base.digest("run.dir") == elsewhere.digest("run.dir")
