"""gymnasium knows the task, and its checker accepts it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vla_rl.sim
from vla_rl.config.schema import SimConfig
from vla_rl.errors import ConfigError
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.registration import ENV_ID


def test_gymnasiums_checker_accepts_the_task_pictures_included() -> None:
    env = gymnasium.make(ENV_ID, image_px=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice about symmetric actions does not fit joint ranges
        check_env(env.unwrapped, skip_render_check=False)


def test_made_without_arguments_it_has_the_defaults_of_the_schema() -> None:
    made, defaults = gymnasium.make(ENV_ID).unwrapped, SimConfig()
    assert isinstance(made, BoatToDisk)
    assert (made.describe()["protocol"], made.image_px) == (defaults.protocol, defaults.image_px)
    assert (made.chunk_ticks, made.max_ticks) == (defaults.chunk_ticks, defaults.max_ticks)
    assert (made.terminate_on, made.stop_hopeless) == (defaults.terminate_on, defaults.stop_hopeless)


def test_settings_reach_the_task_and_unknown_ones_are_named() -> None:
    env = gymnasium.make(ENV_ID, protocol="sim100b-h10", image_px=32, render_mode="rgb_array")
    assert env.action_space.shape == (10, 6)
    with pytest.raises(ConfigError, match="execute_ticks"):
        gymnasium.make(ENV_ID, execute_ticks=10)
    with pytest.raises(ConfigError, match="human"):
        gymnasium.make(ENV_ID, render_mode="human")


def test_a_vector_of_environments_stacks_spawns_and_pictures() -> None:
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, image_px=32)
    observation, info = envs.reset(seed=[300, 301])
    assert observation["top"].shape == (2, 32, 32, 3) and info["spawn"].shape == (2, 3)
    assert not np.array_equal(info["spawn"][0], info["spawn"][1])
    envs.close()


def test_the_module_form_needs_no_import_and_registering_twice_is_quiet() -> None:
    code = (
        "import warnings; warnings.simplefilter('error'); import gymnasium;"
        f"env = gymnasium.make('vla_rl.sim:{ENV_ID}', image_px=32, disable_env_checker=True);"
        "import vla_rl.sim; vla_rl.sim.register(); print(env.unwrapped.ticks)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "-1"), done.stderr


def test_registering_imports_neither_mujoco_nor_the_configuration() -> None:
    code = "import sys, vla_rl.sim; print([m for m in ('mujoco', 'torch', 'omegaconf', 'hydra') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]" and vla_rl.sim.ENV_ID == ENV_ID


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"arm": [0] * 6}, "no option 'arm'"),
        ({"arm_deg": [0.0] * 5}, "shape"),
        ({"arm_deg": [float("nan")] * 6}, "finite"),
    ],
)
def test_an_option_of_reset_that_makes_no_sense_is_named(options: dict, problem: str) -> None:
    env = gymnasium.make(ENV_ID, image_px=32).unwrapped
    with pytest.raises(ConfigError, match=problem):
        env.reset(seed=300, options=options)
    env.reset(seed=300, options={"arm_deg": None})
