"""What may be given beside run.resume, and in which form."""

from __future__ import annotations

import re

import pytest
import yaml

from vla_rl.cli.resume import FREE_OF_TRAINING, compose_or_resume
from vla_rl.config.compose import compose
from vla_rl.errors import ConfigError, UsageError


def stored(tmp_path, *overrides):
    """A directory of a stopped run with this configuration."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(compose("config", overrides).tree))
    return f"run.resume={tmp_path}"


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("run.max_wall_s=1e3", 1000.0),
        ("run.max_wall_s=540", 540.0),
        ("budget.gpu_h=null", None),
        ("budget.env_ticks=9", 9),
        ("pool.workers=3", 3),
        ("optim.microbatch_tokens=null", None),
        ("optim.moments=host", "host"),
    ],
)
def test_a_free_key_is_given_anew_in_its_own_type(tmp_path, given, value):
    reader = compose_or_resume("config", [stored(tmp_path), given], FREE_OF_TRAINING)
    section, _, key = given.partition("=")[0].partition(".")
    assert reader.tree[section][key] == value and type(reader.tree[section][key]) is type(value)


def test_a_run_on_a_cluster_goes_on_on_another(tmp_path):
    for given, value in (("10.0.0.1:6379", "10.0.0.1:6379"), ("null", None)):
        words = [stored(tmp_path, "pool=ray", "pool.address=10.0.0.9:6379"), f"pool.address={given}"]
        assert compose_or_resume("config", words, FREE_OF_TRAINING).tree["pool"]["address"] == value


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("pool.workers=2.5", "int"),
        ("pool.workers=null", "int"),
        ("optim.microbatch_rows=true", "int"),
        ("budget.env_ticks=1e9", "int or null"),
        ("budget.wall_h=soon", "float or null"),
        ("budget.wall_h=[1]", "float or null"),
        ("budget.wall_h=[", "float or null"),
        ("budget.wall_h=-1", "at least 0"),
        ("optim.moments=disk", "device"),
        ("optim.moments=1", "str"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(tmp_path, given, told):
    with pytest.raises(ConfigError, match=told):
        compose_or_resume("config", [stored(tmp_path), given], FREE_OF_TRAINING)


def test_a_key_that_the_stopped_run_does_not_have_is_refused_and_not_dropped(tmp_path):
    with pytest.raises(ConfigError, match="no key pool.workers"):
        compose_or_resume("config", [stored(tmp_path, "pool=serial"), "pool.workers=2"], FREE_OF_TRAINING)
    with pytest.raises(UsageError, match="optim.lr"):
        compose_or_resume("config", [stored(tmp_path), "optim.lr=1"], FREE_OF_TRAINING)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tree: [tree.pop(name) for name in ("gates", "token_loss")], "lacks token_loss, gates$"),
        (lambda tree: tree["loss"].pop("trust_region"), r"lacks loss\.trust_region$"),
        (lambda tree: tree["sim"]["look"].pop("clutter"), r"lacks sim\.look\.clutter$"),
        (lambda tree: tree["optim"].update(momentum=0.9), r"has optim\.momentum$"),
    ],
)
def test_a_job_of_another_version_is_told_by_what_its_configuration_lacks(tmp_path, change, told):
    resume = stored(tmp_path)
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    change(tree)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError) as refused:
        compose_or_resume("config", [resume], FREE_OF_TRAINING)
    what = str(refused.value.what)
    assert re.search(told, what) and "another version" in what


def test_a_job_of_another_command_is_told_as_such(tmp_path):
    with pytest.raises(UsageError, match="another command"):
        compose_or_resume("eval", [stored(tmp_path)], FREE_OF_TRAINING)
