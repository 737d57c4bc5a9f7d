"""Policies of the LeRobot library (ACT, SmolVLA, ...) in this package's evaluation.

In: a directory that LeRobot's `save_pretrained` wrote, its two processors included, and what it does not say of
itself: joint frame, rate, which input gets which camera. Out: a `LeRobotPolicy`, and a `LeRobotSampler` that answers
the same requests as the token sampler's, without tokens. Whatever does not fit the world is refused before anything is
played (`vla_rl.policy.lerobot_fit`). LeRobot is imported here alone, and only when such a policy is loaded.

A chunk is made as LeRobot serves it: the policy is reset, then asked for `n_action_steps` actions, of which it computes
all at the first. Requests are answered one by one, each with torch's generator seeded by its own key, so an answer does
not depend on what else is asked. Left out: training, policies that look at more than the present moment, adapters of
peft, checkpoints on the hub.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_rl.errors import ConfigError, MachineError
from vla_rl.policy.heads import LEROBOT
from vla_rl.policy.joint_frames import RIG, Angles
from vla_rl.policy.lerobot_fit import STATE, Stated, World, check_fit, check_processors, frame_of
from vla_rl.policy.noise import RngKey
from vla_rl.policy.prompt import CAMERAS, Observation
from vla_rl.policy.sampler import GRAMMAR_MASKED, DecodeCounts, Prediction, PredictRequest
from vla_rl.seeds import stream

PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
FILES = ("config.json", "model.safetensors", *PROCESSORS)


class LeRobotPolicy:
    """A policy of LeRobot with its processors, and what it was taken for.

    Args:
        network: with `reset` and `select_action`, as LeRobot's `PreTrainedPolicy`.
        before, after: its processors, of a batch and of an action.
        stated: what its user said of it.
        frame: joint frame of its angles.
        steps: actions that are executed before it looks again.
        task: instruction.
        files: digest of its files.
        made_by: its kind and LeRobot's version, for records.

    Attributes:
        head: which sampler answers for it.
        told: what a record says of it beside its digest.
    """

    head = LEROBOT

    def __init__(
        self,
        *,
        network: Any,
        before: Any,
        after: Any,
        stated: Stated,
        frame: str,
        steps: int,
        task: str,
        files: str,
        made_by: Mapping[str, str],
    ) -> None:
        self.network, self.before, self.after = network, before, after
        self.stated, self.frame, self.steps, self.task = stated, frame, steps, task
        convention = {"joint_frame": frame, "units": "degrees", "fps": stated.fps, "n_action_steps": steps}
        self.told = {"lerobot": {**made_by, **convention, "cameras": dict(stated.inputs)}}
        self._files = files

    def digest(self) -> str:
        """SHA-256 over its files and over how they were read, without LeRobot's version."""
        read = {"frame": self.frame, "steps": self.steps, "inputs": self.stated.inputs, "task": self.task}
        return hashlib.sha256((self._files + json.dumps(read, sort_keys=True)).encode()).hexdigest()

    @torch.no_grad()
    def chunk_deg(self, observation: Observation) -> np.ndarray:
        """Joint targets float64 [n_action_steps, 6], degrees of the rig."""
        self.network.reset()
        seen = self.before(self._batch(observation))
        actions = [self.after(self.network.select_action(seen)) for _ in range(self.steps)]
        targets = torch.cat(actions).to("cpu", torch.float64).numpy()
        return Angles(targets, self.frame).to(RIG).degrees

    def _batch(self, observation: Observation) -> dict[str, Any]:
        """What LeRobot's own evaluation makes of an environment's observation, for one environment."""
        state = Angles(observation.state_deg, RIG).to(self.frame).degrees
        batch: dict[str, Any] = {STATE: torch.from_numpy(state)[None].float(), "task": [self.task]}
        for camera, picture in zip(CAMERAS, observation.frames, strict=True):
            if name := self.stated.inputs.get(camera):
                batch[name] = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 255
        return batch


class LeRobotSampler:
    """Answers requests with a LeRobot policy.

    Args:
        policy: the policy.
        run_seed: first part of every random key.
        batch_rows: says nothing here: requests are answered one by one.
        mode, keys, dtype: the token sampler's; only its defaults stand for a policy without tokens.

    Raises:
        ConfigError: another mode, kind of keys or number format.
    """

    def __init__(
        self,
        *,
        policy: LeRobotPolicy,
        run_seed: int,
        batch_rows: int,
        mode: str = GRAMMAR_MASKED,
        keys: str = "named",
        dtype: str | None = None,
    ) -> None:
        for name, value, only in (("mode", mode, GRAMMAR_MASKED), ("keys", keys, "named"), ("dtype", dtype, None)):
            if value != only:
                raise ConfigError(
                    f"a LeRobot policy has no tokens, so there is no {name} {value!r} of it",
                    where=f"sampler.{name}",
                    remedy=f"leave sampler.{name} away",
                )
        self.policy, self.run_seed = policy, run_seed

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        """Answer every request, in order; without bins.

        Raises:
            ConfigError: the temperature is not 0.
        """
        if temperature != 0:
            raise ConfigError(
                f"a LeRobot policy knows no temperature {temperature:g}",
                where="eval.temperature",
                remedy="use eval.temperature=0",
            )
        return [self._answer(request) for request in requests]

    def _answer(self, request: PredictRequest) -> Prediction:
        started = time.perf_counter()
        key: RngKey = (self.run_seed, request.draw, request.seed, request.replan)
        network = self.policy.network
        cuda = [torch.cuda.current_device()] if next(network.parameters()).is_cuda else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(int(stream("lerobot", *key).integers(2**63)))
            chunk_deg = self.policy.chunk_deg(request.observation)
        return Prediction(
            bins=np.zeros(0, dtype=np.int16),
            logp=np.zeros(0, dtype=np.float32),
            legal_packed=np.zeros((0, 0), dtype=np.uint8),
            chunk_deg=chunk_deg,
            rng_key=key,
            counts=DecodeCounts(predict_s=time.perf_counter() - started),
        )


def load_lerobot_policy(
    *,
    checkpoint: str,
    top: str | None,
    wrist: str | None,
    joint_frame: str | None,
    fps: int,
    n_action_steps: int | None,
    task: str,
    device: str,
    env_spec: Mapping[str, Any] | None = None,
) -> LeRobotPolicy:
    """Load a policy and check that it fits the world.

    Args:
        checkpoint: directory with config, weights and processors.
        top, wrist: names of the inputs that get the pictures; None where it does not use one.
        joint_frame: of its angles, ``rig`` or ``v21``; None asks its normalisation statistics.
        fps: rate that its actions are for.
        n_action_steps: actions that are executed before it looks again; None takes the checkpoint's number.
        task: instruction.
        device: ``"cpu"`` or ``"cuda"``.
        env_spec: how the simulator is configured; only an evaluation offers it.

    Raises:
        MachineError: LeRobot is not installed.
        ConfigError: not an evaluation, no such checkpoint, or it does not fit; says where, and what would.
    """
    if env_spec is None:
        raise ConfigError(
            "a policy of LeRobot can be evaluated, nothing else",
            where="policy",
            remedy="vla-rl eval policy=lerobot ...",
        )
    require_lerobot()
    directory = Path(checkpoint)
    absent = [name for name in FILES if not (directory / name).is_file()]
    if absent:
        raise ConfigError(
            f"no LeRobot checkpoint: {', '.join(absent)} not found",
            where=f"policy.checkpoint={checkpoint}",
            remedy="name the directory that save_pretrained of policy and both processors wrote (pretrained_model of a "
            "training); for one on the hub: hf download REPOSITORY --revision COMMIT --local-dir DIR",
        )
    for name in PROCESSORS:
        check_processors(json.loads((directory / name).read_text()), where=str(directory / name))
    stated = Stated({name: key for name, key in (("top", top), ("wrist", wrist)) if key}, joint_frame, fps)
    config = _config(directory, device, n_action_steps)
    check_fit(config, stated, World.of(env_spec), where=checkpoint)
    before, after = _processors(directory, config, device)
    frame = frame_of(_statistics(before), stated.joint_frame, where=checkpoint)
    return LeRobotPolicy(
        network=_network(directory, config, device),
        before=before,
        after=after,
        stated=stated,
        frame=frame,
        steps=config.n_action_steps,
        task=task,
        files=_digest(directory),
        made_by={"type": config.type, "version": importlib.metadata.version("lerobot")},
    )


def require_lerobot() -> None:
    """Raises:
    MachineError: LeRobot is not installed.
    """
    if importlib.util.find_spec("lerobot") is None:
        raise MachineError(
            "policy=lerobot needs the package lerobot, which is not installed here",
            where="policy=lerobot",
            remedy="in an environment of its own, because lerobot pins older versions: pip install 'vla-rl[lerobot]' "
            "(docs/lerobot.md)",
        )


def _config(directory: Path, device: str, n_action_steps: int | None) -> Any:
    """The checkpoint's configuration by LeRobot's own reading."""
    # Importing the policies registers them with their configurations.
    import lerobot.policies  # noqa: F401  # pyright: ignore[reportMissingImports]
    from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]

    overrides = [f"--device={device}"]
    if n_action_steps is not None:
        overrides.append(f"--n_action_steps={n_action_steps}")
    with _reading(f"{directory / 'config.json'}" + ("" if n_action_steps is None else ", policy.n_action_steps")):
        config: Any = PreTrainedConfig.from_pretrained(directory, cli_overrides=overrides)
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None  # they come with the checkpoint; LeRobot would download others first
    return config


def _processors(directory: Path, config: Any, device: str) -> tuple[Any, Any]:
    """What turns observations into inputs, and outputs into actions."""
    from lerobot.policies import make_pre_post_processors  # pyright: ignore[reportMissingImports]

    overrides = {"device_processor": {"device": device}}
    with _reading(f"the processors in {directory}"):
        return make_pre_post_processors(config, str(directory), preprocessor_overrides=overrides)


def _network(directory: Path, config: Any, device: str) -> Any:
    """The network, strictly: a weight that is missing would otherwise be random."""
    from lerobot.policies import get_policy_class  # pyright: ignore[reportMissingImports]

    with _reading(f"{directory / 'model.safetensors'}"):
        network = get_policy_class(config.type).from_pretrained(str(directory), config=config, strict=True)
    return network.to(device).eval()


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """What LeRobot raises becomes our error, and what it prints goes to stderr: stdout may hold our JSON."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:  # its parser has classes of its own, and leaves on bad overrides
        root: BaseException = error
        while cause := root.__cause__ or root.__context__:
            root = cause
        raise ConfigError(
            f"LeRobot cannot read this policy: {root or type(root).__name__}",
            where=where,
            remedy="see whether lerobot-eval reads it; files must be complete, of a version that this lerobot knows",
        ) from error


def _statistics(before: Any) -> Mapping[str, Any]:
    """Normalisation statistics of the measured angles; empty if it has none."""
    found = [step.stats for step in before.steps if getattr(step, "stats", None)]
    return found[0].get(STATE, {}) if found else {}


def _digest(directory: Path) -> str:
    total = hashlib.sha256()
    for path in sorted({directory / "config.json", *directory.glob("*.safetensors"), *directory.glob("policy_*.json")}):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
