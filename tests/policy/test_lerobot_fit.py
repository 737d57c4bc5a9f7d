"""Whether a LeRobot policy fits the world is decided from plain facts; its answers depend on their own keys alone."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vla_rl.config.compose import compose
from vla_rl.errors import ConfigError, MachineError
from vla_rl.policy.joint_frames import RIG, V21, Angles
from vla_rl.policy.lerobot import LeRobotPolicy, LeRobotSampler, load_lerobot_policy
from vla_rl.policy.lerobot_fit import STATE, Stated, World, check_fit, check_processors, frame_of
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest

ROOT = Path(__file__).resolve().parents[2]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
BOTH = Stated({"top": TOP, "wrist": WRIST}, None, 30)
HERE = World("sim100b", 112, 30)


def feature(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape)


def configured(inputs: dict[str, Any] | None = None, **changes: Any) -> SimpleNamespace:
    """The attributes of a LeRobot configuration that are looked at."""
    pictures = {TOP: feature(3, 112, 112), WRIST: feature(3, 112, 112)}
    facts = {
        "input_features": {STATE: feature(6), **pictures} if inputs is None else inputs,
        "output_features": {"action": feature(6)},
        "n_obs_steps": 1,
        "chunk_size": 50,
        "n_action_steps": 30,
    }
    return SimpleNamespace(**(facts | changes))


def test_a_policy_that_fits_is_taken() -> None:
    check_fit(configured(), BOTH, HERE, where="DIR")
    only_top = configured({STATE: feature(6), TOP: feature(3, 112, 112)})
    check_fit(only_top, Stated({"top": TOP}, None, 30), HERE, where="DIR")
    check_fit(configured({TOP: feature(3, 112, 112)}), Stated({"top": TOP}, None, 30), HERE, where="DIR")
    check_fit(configured(n_action_steps=7), BOTH, World(None, None, None), where="DIR")


@pytest.mark.parametrize(
    ("config", "stated", "world", "problem", "remedy"),
    [
        (
            configured({STATE: feature(6), "cam": feature(3, 112, 112)}),
            BOTH,
            HERE,
            "wants the input cam",
            "policy.top=",
        ),
        (
            configured({STATE: feature(6), TOP: feature(3, 112, 112)}),
            BOTH,
            HERE,
            f"no input {WRIST}",
            "policy.wrist=null",
        ),
        (
            configured({STATE: feature(6), TOP: feature(3, 112, 112)}),
            Stated({"top": TOP, "wrist": TOP}, None, 30),
            HERE,
            "both cameras",
            "two inputs",
        ),
        (
            configured(),
            BOTH,
            World("sim100b", 64, 30),
            "[3, 112, 112], the pictures here are [3, 64, 64]",
            "sim.image_px=112",
        ),
        (
            configured({STATE: feature(6), TOP: feature(3, 480, 640), WRIST: feature(3, 480, 640)}),
            BOTH,
            HERE,
            "[3, 480, 640]",
            "square",
        ),
        (configured(output_features={"action": feature(7)}), BOTH, HERE, "shape [7]", "shoulder_pan"),
        (configured(output_features={}), BOTH, HERE, "shape None", "shoulder_pan"),
        (configured(), Stated(BOTH.inputs, None, 50), HERE, "for 50 Hz", "30 Hz"),
        (configured(n_obs_steps=2), BOTH, HERE, "more than the present", "lerobot-eval"),
        (configured(temporal_ensemble_coeff=0.01), BOTH, HERE, "several moments", "lerobot-eval"),
        (configured(n_action_steps=10), BOTH, HERE, "executes 10 actions", "sim.protocol=sim100b-h10"),
        (configured(n_action_steps=50), BOTH, HERE, "executes 50 actions", "policy.n_action_steps=30"),
        (configured(n_action_steps=20, chunk_size=20), BOTH, HERE, "executes 20 actions", "train it with chunks"),
        (configured(use_peft=True), BOTH, HERE, "adapter of peft", "merge"),
    ],
)
def test_what_does_not_fit_is_refused_with_where_and_remedy(
    config: Any, stated: Stated, world: World, problem: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_fit(config, stated, world, where="DIR")
    assert problem in refusal.value.what and remedy in (refusal.value.remedy or "")
    assert refusal.value.where


def test_the_world_is_read_from_the_sim_group() -> None:
    tree = compose("eval", ["policy=expert", "sim.protocol=sim100b-h10", "sim.image_px=64"]).tree["sim"]
    assert World.of(tree) == World("sim100b-h10", 64, 10)
    assert World.of({"_target_": "mine.World"}) == World(None, None, None)


RIG_DEG = {"min": [-60, -100, -60, -20, -90, -10], "max": [60, 60, 95, 100, 90, 100]}
V21_DEG = {"q01": [-60, 30, 30, -20, -90, -10], "q99": [60, 190, 185, 100, 90, 100]}


def test_the_joint_frame_is_what_statistics_tell_or_what_is_stated() -> None:
    assert frame_of(RIG_DEG, None, where="DIR") == RIG == frame_of(RIG_DEG, RIG, where="DIR")
    assert frame_of(V21_DEG, None, where="DIR") == V21
    as_arrays = {name: torch.tensor(values) for name, values in V21_DEG.items()}
    assert frame_of(as_arrays, None, where="DIR") == V21
    assert frame_of({}, V21, where="DIR") == V21 and frame_of({"mean": [0] * 6}, RIG, where="DIR") == RIG


@pytest.mark.parametrize(
    ("statistics", "stated", "problem"),
    [
        (RIG_DEG, V21, "in the joint frame rig, not v21"),
        (V21_DEG, RIG, "in the joint frame v21, not rig"),
        ({}, None, "neither"),
        ({"min": [-20] * 6, "max": [20] * 6}, None, "neither"),
        ({"min": [-1.9] * 6, "max": [3.1] * 6}, RIG, "no degrees"),
    ],
)
def test_a_joint_frame_that_nobody_says_or_that_contradicts_is_refused(
    statistics: dict, stated: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        frame_of(statistics, stated, where="DIR")


def test_a_processor_that_names_a_class_is_refused() -> None:
    check_processors({"steps": [{"registry_name": "device_processor"}]}, where="x.json")
    with pytest.raises(ConfigError, match="os.system"):
        check_processors({"steps": [{"registry_name": "device_processor"}, {"class": "os.system"}]}, where="x.json")


class Drawn(torch.nn.Module):
    """A policy after LeRobot's protocol that draws its actions, one a call, around the state that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(6))
        self.asked = 0

    def reset(self) -> None:
        self.asked = 0

    def select_action(self, batch: dict[str, Any]) -> torch.Tensor:
        self.asked += 1
        return batch[STATE] + self.asked + self.scale * torch.randn(1, 6)


def drawn(frame: str = RIG, inputs: dict[str, str] | None = None) -> LeRobotPolicy:
    def same(value: Any) -> Any:
        return value

    stated = Stated(BOTH.inputs if inputs is None else inputs, frame, 30)
    facts = {"files": "0", "made_by": {"type": "drawn"}}
    return LeRobotPolicy(
        network=Drawn(), before=same, after=same, stated=stated, frame=frame, steps=4, task="place it", **facts
    )


def request(seed: int, replan: int = 0, draw: int = 0) -> PredictRequest:
    rng = np.random.default_rng(seed)
    seen = Observation(rng.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8), rng.uniform(-50, 50, 6))
    return PredictRequest(seen, seed, draw, replan)


def test_an_answer_depends_on_its_own_key_alone() -> None:
    asked = [request(300), request(301), request(300, replan=1), request(300, draw=1)]
    sampler = LeRobotSampler(policy=drawn(), run_seed=0, batch_rows=16)
    torch.manual_seed(5)
    together, state = sampler.sample(asked, 0.0), torch.get_rng_state()
    alone = [LeRobotSampler(policy=drawn(), run_seed=0, batch_rows=1).sample([each], 0.0)[0] for each in asked[::-1]]
    for mine, other in zip(together, alone[::-1], strict=True):
        assert np.array_equal(mine.chunk_deg, other.chunk_deg) and mine.chunk_deg.shape == (4, 6)
        assert mine.rng_key == other.rng_key and len(mine.bins) == len(mine.logp) == 0
    chunks = [answer.chunk_deg for answer in together]
    assert not any(np.array_equal(chunks[0], chunk) for chunk in chunks[1:])
    assert torch.equal(state, torch.get_rng_state())
    other_run = LeRobotSampler(policy=drawn(), run_seed=1, batch_rows=16).sample(asked[:1], 0.0)
    assert not np.array_equal(other_run[0].chunk_deg, chunks[0])


def test_angles_pass_into_the_policys_frame_and_back() -> None:
    asked = request(300)
    rig, older = (LeRobotSampler(policy=drawn(frame), run_seed=0, batch_rows=1).sample([asked], 0.0)[0].chunk_deg
                  for frame in (RIG, V21))  # fmt: skip
    # The policy adds the same to the state in its own frame, so on a mirrored joint the rig sees it subtracted.
    added = rig - asked.observation.state_deg
    seen = Angles(asked.observation.state_deg, RIG).to(V21).degrees
    assert np.allclose(older, Angles(seen + added, V21).to(RIG).degrees, atol=1e-4)
    assert np.abs(older - rig)[:, 1].max() > 1 and np.allclose(older[:, 2:], rig[:, 2:], atol=1e-4)


def test_pictures_go_where_it_is_said_and_a_camera_without_an_input_goes_nowhere() -> None:
    seen, batch = request(300).observation, {}
    policy = drawn(inputs={"wrist": "observation.images.hand"})
    policy.before = lambda given: batch.update(given) or given
    policy.chunk_deg(seen)
    assert set(batch) == {STATE, "task", "observation.images.hand"} and batch["task"] == ["place it"]
    picture = batch["observation.images.hand"]
    assert picture.shape == (1, 3, 8, 8) and picture.dtype == torch.float32
    assert np.array_equal((picture[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy(), seen.frames[1])


def test_another_reading_of_the_same_files_is_another_policy() -> None:
    digests = {drawn().digest(), drawn(V21).digest(), drawn(inputs={"top": TOP}).digest()}
    assert len(digests) == 3 and drawn().digest() in digests
    assert drawn(V21).told["lerobot"]["joint_frame"] == V21


def test_what_is_for_tokens_is_refused() -> None:
    for changed in ({"mode": "reference"}, {"keys": "documented"}, {"dtype": "bfloat16"}):
        with pytest.raises(ConfigError, match="no tokens"):
            LeRobotSampler(policy=drawn(), run_seed=0, batch_rows=1, **changed)
    with pytest.raises(ConfigError, match="temperature"):
        LeRobotSampler(policy=drawn(), run_seed=0, batch_rows=1).sample([request(300)], 0.5)


def load(**changes: Any) -> Any:
    settings = {"checkpoint": "DIR", "top": TOP, "wrist": WRIST, "joint_frame": None, "fps": 30, "n_action_steps": None}
    return load_lerobot_policy(**(settings | {"task": "t", "device": "cpu", "env_spec": {}} | changes))


def test_it_can_be_evaluated_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match="evaluated, nothing else"):
        load(env_spec=None)


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is not None, reason="LeRobot is installed")
def test_without_lerobot_the_remedy_is_named() -> None:
    with pytest.raises(MachineError) as refusal:
        load()
    assert "lerobot" in refusal.value.what and "vla-rl[lerobot]" in (refusal.value.remedy or "")


def test_nothing_imports_lerobot_before_such_a_policy_is_loaded() -> None:
    importing = set()
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        inside = {node for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) for node in ast.walk(each)}
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "lerobot" for name in names):
                assert node in inside, path
                importing.add(path.name)
    assert importing == {"lerobot.py"}
