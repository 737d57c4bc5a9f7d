"""Building from `_target_`: allow-list first, then import; keys checked against the constructor."""

import sys
import textwrap

import pytest

from vla_rl.config.build import build
from vla_rl.errors import ConfigError


@pytest.mark.parametrize(
    "target",
    ["os.system", "builtins.eval", "torch.load", "vla_rlx.thing", "vla_rl.paths.os.system", "vla_rl.seeds.np.load"],
)
def test_a_target_outside_the_allow_list_is_refused_and_not_called(target):
    with pytest.raises(ConfigError):
        build({"_target_": target})


def test_a_nested_target_is_checked_as_well():
    with pytest.raises(ConfigError, match="allowed packages"):
        build(
            {"_target_": "vla_rl.seeds.Band", "first": {"_target_": "os.getcwd"}, "last": 1, "uses": [], "purpose": ""}
        )


def test_an_allowed_target_is_built_with_configuration_and_runtime_arguments():
    band = build(
        {"_target_": "vla_rl.seeds.Band", "first": 1, "last": 2, "purpose": "x"}, {"uses": frozenset({"eval"})}
    )
    assert (band.first, band.last, band.uses) == (1, 2, frozenset({"eval"}))


def test_a_constructor_gets_the_runtime_objects_that_it_names():
    node = {"_target_": "vla_rl.seeds.Band", "first": 1, "last": 2, "purpose": "x"}
    assert build(node, {"uses": frozenset({"eval"}), "policy": object()}).last == 2


def test_unknown_and_missing_keys_are_named():
    with pytest.raises(ConfigError, match="takes no key 'frist'") as error:
        build({"_target_": "vla_rl.seeds.Band", "frist": 1, "last": 2, "uses": [], "purpose": ""})
    assert "did you mean first?" in str(error.value)
    with pytest.raises(ConfigError, match="needs purpose"):
        build({"_target_": "vla_rl.seeds.Band", "first": 1, "last": 2, "uses": []})


def test_a_plugin_package_needs_to_be_listed(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        textwrap.dedent("""
            class Doubled:
                def __init__(self, *, factor):
                    self.factor = 2 * factor
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    node = {"_target_": "my_rewards.Doubled", "factor": 3}
    with pytest.raises(ConfigError, match="plugins"):
        build(node)
    assert "my_rewards" not in sys.modules
    assert build(node, plugins=["my_rewards"]).factor == 6


def test_the_switch_that_disables_hydras_own_check_is_refused(monkeypatch):
    monkeypatch.setenv("HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE", "os.system")
    with pytest.raises(ConfigError, match="HYDRA_INSTANTIATE"):
        build({"_target_": "vla_rl.seeds.Band"})
