"""Whether a policy of LeRobot fits this world: inputs, pictures, joints, rate, horizon.

In: its configuration and statistics as plain attributes, what the user says of it, and how the simulator is
configured. Out: its joint frame, or a refusal with what, where and remedy. Nothing here imports LeRobot, so all of it
is tested without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.errors import ConfigError
from vla_rl.policy.joint_frames import JOINTS, state_frame
from vla_rl.sim.protocol import PROTOCOLS

STATE, ACTION = "observation.state", "action"
FPS = 30  # ticks of a nominal second, under every protocol
RADIANS = 2 * np.pi


@dataclass(frozen=True)
class Stated:
    """What a checkpoint does not say of itself and its user does.

    Attributes:
        inputs: name of the input by camera (``top``, ``wrist``); a camera that it does not use is absent.
        joint_frame: of its angles; None: not stated.
        fps: rate that its actions are for.
    """

    inputs: Mapping[str, str]
    joint_frame: str | None
    fps: int


@dataclass(frozen=True)
class World:
    """What a policy must fit. None where a simulator of somebody else's does not say.

    Attributes:
        protocol: id.
        image_px: height and width of both pictures.
        execute_ticks: ticks of a chunk that are executed before the next observation.
    """

    protocol: str | None
    image_px: int | None
    execute_ticks: int | None

    @classmethod
    def of(cls, env_spec: Mapping[str, Any]) -> World:
        """From the `sim` group of a configuration."""
        protocol = env_spec.get("protocol")
        known = PROTOCOLS.get(protocol) if isinstance(protocol, str) else None
        return cls(protocol, env_spec.get("image_px"), known.execute_ticks if known else env_spec.get("execute_ticks"))


def check_fit(config: Any, stated: Stated, world: World, *, where: str) -> None:
    """Refuse a policy whose inputs, outputs, rate or horizon are not the world's.

    Args:
        config: LeRobot's configuration of a policy (`PreTrainedConfig`).
        where: the checkpoint.

    Raises:
        ConfigError: the first thing that does not fit.
    """
    _check_inputs(config, stated, where)
    for name, feature in config.input_features.items():
        if name in stated.inputs.values():
            _check_picture(name, tuple(feature.shape), world, where)
    _check_joints(config, where)
    if stated.fps != FPS:
        raise ConfigError(
            f"its actions are for {stated.fps} Hz, this world's ticks for {FPS} Hz",
            where=f"policy.fps, {where}",
            remedy=f"train it on demonstrations at {FPS} Hz (`vla-rl demos` writes them)",
        )
    _check_horizon(config, world, where)
    if getattr(config, "use_peft", False):
        raise ConfigError(
            "it is an adapter of peft, without the weights that it belongs to",
            where=where,
            remedy="merge it into its base and save that",
        )


def _check_inputs(config: Any, stated: Stated, where: str) -> None:
    wanted, given = set(config.input_features or {}), {STATE, *stated.inputs.values()}
    if missing := sorted(wanted - given):
        raise ConfigError(
            f"it wants the input {missing[0]}, and nothing goes there; there are {', '.join(sorted(given))}",
            where=where,
            remedy="say which of its inputs get the cameras: policy.top=NAME policy.wrist=NAME",
        )
    if unused := sorted(given - wanted - {STATE}):
        camera = next(camera for camera, name in stated.inputs.items() if name == unused[0])
        raise ConfigError(
            f"it has no input {unused[0]} for the {camera} camera; its inputs are {', '.join(sorted(wanted))}",
            where=f"policy.{camera}, {where}",
            remedy=f"policy.{camera}=NAME of one of its inputs, or policy.{camera}=null if it does not look there",
        )
    if len(set(stated.inputs.values())) < len(stated.inputs):
        raise ConfigError(
            "both cameras go to one input", where="policy.top, policy.wrist", remedy="name two inputs, or null for one"
        )


def _check_picture(name: str, shape: tuple[int, ...], world: World, where: str) -> None:
    px = world.image_px
    if px is None or shape == (3, px, px):
        return
    square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    raise ConfigError(
        f"its input {name} is {list(shape)}, the pictures here are {[3, px, px]}",
        where=f"sim.image_px, {where}",
        remedy=f"sim.image_px={shape[1]}" if square else "pictures are square here: train it on such demonstrations",
    )


def _check_joints(config: Any, where: str) -> None:
    for name, feature in (
        (STATE, (config.input_features or {}).get(STATE)),
        (ACTION, (config.output_features or {}).get(ACTION)),
    ):
        shape = None if feature is None else list(feature.shape)
        if shape != [len(JOINTS)] and not (name == STATE and shape is None):
            raise ConfigError(
                f"its {name} has the shape {shape}, an SO-101 has {len(JOINTS)} joints",
                where=where,
                remedy=f"a policy for {', '.join(JOINTS)}, in this order",
            )


def _check_horizon(config: Any, world: World, where: str) -> None:
    if config.n_obs_steps != 1 or getattr(config, "temporal_ensemble_coeff", None) is not None:
        why = "mixes the chunks of several moments" if config.n_obs_steps == 1 else "looks at more than the present"
        raise ConfigError(
            f"it {why}, but a chunk is executed here before the policy looks again",
            where=f"n_obs_steps, temporal_ensemble_coeff of {where}",
            remedy="evaluate it with lerobot-eval --env.type=vla_rl, which asks it at every tick",
        )
    steps, longest = getattr(config, "n_action_steps", None), getattr(config, "chunk_size", None)
    if world.execute_ticks in (None, steps):
        return
    fits = [name for name, protocol in PROTOCOLS.items() if protocol.execute_ticks == steps]
    choices = [f"sim.protocol={fits[0]} or another with its horizon"] if fits else []
    if longest is None or longest >= world.execute_ticks:
        choices.append(f"policy.n_action_steps={world.execute_ticks}, if it is to look again after so many")
    raise ConfigError(
        f"it executes {steps} actions before it looks again, protocol {world.protocol} {world.execute_ticks}",
        where=f"policy.n_action_steps, {where}",
        remedy="; ".join(choices) or f"train it with chunks of at least {world.execute_ticks} actions",
    )


def frame_of(statistics: Mapping[str, Any], stated: str | None, *, where: str) -> str:
    """The joint frame of a policy, from what is stated and what its normalisation statistics tell.

    Args:
        statistics: of its measured angles: ``q01`` and ``q99``, or ``min`` and ``max``, each [6]; may be empty.
        stated: ``rig``, ``v21`` or None.
        where: the checkpoint.

    Raises:
        ConfigError: they are no degrees, they contradict what is stated, or nobody says it.
    """
    pair = next((pair for pair in (("q01", "q99"), ("min", "max")) if set(pair) <= set(statistics)), None)
    told = None
    if pair:
        low, high = (np.asarray(statistics[name], dtype=np.float64).reshape(-1) for name in pair)
        if max(np.abs(low).max(), np.abs(high).max()) <= RADIANS:
            raise ConfigError(
                f"its angles span {low.min():.2f} to {high.max():.2f}: these are no degrees",
                where=f"statistics of {STATE} in {where}",
                remedy="train it on degrees, as `vla-rl demos` writes them",
            )
        told = state_frame(low, high)
    if told and stated and told != stated:
        raise ConfigError(
            f"its statistics are in the joint frame {told}, not {stated}",
            where=f"policy.joint_frame, {where}",
            remedy=f"policy.joint_frame={told}, or leave it away",
        )
    if not (told or stated):
        raise ConfigError(
            "neither its statistics nor the configuration say which joint frame its degrees are in",
            where=f"policy.joint_frame, {where}",
            remedy="policy.joint_frame=rig (LeRobot v3.0, what `vla-rl demos` writes) or policy.joint_frame=v21",
        )
    return stated or told or ""


def check_processors(pipeline: Mapping[str, Any], *, where: str) -> None:
    """Refuse a pipeline that names Python classes: LeRobot would import whatever module a file names.

    Args:
        pipeline: a processor's JSON.

    Raises:
        ConfigError: naming the class.
    """
    for step in pipeline.get("steps", ()):
        if "registry_name" not in step:
            raise ConfigError(
                f"a processor step is the class {step.get('class')!r}, and code that a file names is not imported",
                where=where,
                remedy="use steps that LeRobot registers by name",
            )
