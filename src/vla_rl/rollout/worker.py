"""The environment side of a pool: a set of env slots, and the loop of a worker process around it.

In: an env spec (a plain `_target_` dict) and commands (`reset` a slot with a seed, `step` a slot with a chunk). Out:
one `SlotResult` a command; frames go through shared memory, everything else through the pipe. A slot's env is built
when it is first reset. Nothing here imports torch: a worker is light. Left out: which slot plays which episode, and
what happens when a worker is lost (`pool`, `wave`).
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from vla_rl import errors
from vla_rl.config.build import build
from vla_rl.policy.prompt import CAMERAS, Observation
from vla_rl.rollout.description import describe
from vla_rl.rollout.records import Trace
from vla_rl.rollout.shared import FrameBlock, Shape
from vla_rl.sim.metrics import distances_cm, grips

Message = tuple[Any, ...]


@dataclass(frozen=True)
class SlotResult:
    """What one slot answered.

    Attributes:
        slot: index of the slot.
        observation: what is seen now; None when the episode was lost.
        done: the episode has ended.
        metrics, trace: the episode's, when it has ended; there is no trace where the environment has none.
        wall_s: time that the environment worked on this command.
        lost: why the episode must be redone (its worker died, hung or showed garbage); None when all is well.
        at_fault: the worker was lost while it worked on this slot; False for the others that it took with it.
    """

    slot: int
    observation: Observation | None = None
    done: bool = False
    metrics: dict[str, Any] | None = None
    trace: Trace | None = None
    wall_s: float = 0.0
    lost: str | None = None
    at_fault: bool = False


class EnvSlots:
    """Environments by slot, used in-process by `SerialPool` and inside each worker of `ProcessPool`."""

    def __init__(self, env_spec: Mapping[str, Any], plugins: Sequence[str]) -> None:
        self._spec, self._plugins = dict(env_spec), plugins
        self._envs: dict[int, Any] = {}
        self._starts: dict[int, list[int]] = {}  # first ticks of the replans so far, by slot

    def prepare(self, slot: int) -> None:
        """Build the slot's environment if there is none yet (loads the model and the renderer)."""
        if slot not in self._envs:
            self._envs[slot] = build(self._spec, plugins=self._plugins, where="sim")

    def describe(self, slot: int) -> dict[str, Any]:
        """What the slot's environment says of itself, see `vla_rl.rollout.description`."""
        self.prepare(slot)
        return describe(self._envs[slot])

    def reset(self, slot: int, seed: int) -> SlotResult:
        started = time.perf_counter()
        self.prepare(slot)
        observation, _ = self._envs[slot].reset(seed=seed)
        self._starts[slot] = []
        return SlotResult(slot, see(observation), wall_s=time.perf_counter() - started)

    def step(self, slot: int, chunk_deg: np.ndarray) -> SlotResult:
        """Execute the first ticks of a chunk [tick, joint] in degrees, as many as the environment takes at a time."""
        started = time.perf_counter()
        env = self._envs[slot]
        self._starts[slot].append(getattr(env, "ticks", 0))
        observation, _, terminated, truncated, _ = env.step(chunk_deg[: env.action_space.shape[0]])
        done = bool(terminated or truncated)
        metrics = _plain(env.metrics().as_dict()) if done else None
        trace = _trace(env, self._starts[slot]) if done else None
        return SlotResult(slot, see(observation), done, metrics, trace, time.perf_counter() - started)

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()


def _trace(env: Any, starts: list[int]) -> Trace | None:
    samples = getattr(env, "trace", None)
    if samples is None:
        return None
    grip_T = grips(samples)
    return Trace(starts, distances_cm(samples).tolist(), None if grip_T is None else grip_T.tolist())


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with numpy scalars turned into Python ones, which JSON can hold."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in metrics.items()}


def see(observation: Mapping[str, Any]) -> Observation:
    """Check and pack an observation.

    Raises:
        RolloutError: a frame of the wrong type or of one single colour, or a state that is not finite.
    """
    for camera in CAMERAS:
        frame = observation[camera]
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.min() == frame.max():
            raise errors.RolloutError(
                f"camera {camera!r} rendered garbage ({frame.dtype} {frame.shape}, range {frame.min()}..{frame.max()})"
            )
    state_deg = np.array(observation["state"], dtype=np.float64)
    if not np.isfinite(state_deg).all():
        raise errors.RolloutError(f"the joint state is not finite: {state_deg.tolist()}")
    return Observation(np.stack([observation[camera] for camera in CAMERAS]), state_deg)


def worker_main(
    connection: Connection, env_spec: dict[str, Any], plugins: Sequence[str], first_slot: int, block: FrameBlock
) -> None:
    """Body of a worker process: answer one command after the other until the parent closes the pipe.

    Messages in: ("reset", slot, seed) or ("step", slot, chunk). Messages out: first ("ready", description), then a
    command each ("ok", result without its observation, state_deg, frames), where `frames` is None if they lie in the
    slot's place in `block`. Instead of either, ("user_error", class name, what, where, remedy) for an error that no
    retry can cure, or ("crash", traceback).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C goes to the whole group; the parent decides what to do
    slots = EnvSlots(env_spec, plugins)
    commands = {"reset": slots.reset, "step": slots.step}
    shape: Shape | None = None

    def serve(name: str, slot: int, data: Any) -> Message:
        return _packed(commands[name](slot, data), block, shape)

    try:
        hello = answer(lambda: ("ready", slots.describe(first_slot)))
        shape = frames_shape(hello[1]) if hello[0] == "ready" else None
        connection.send(hello)
        while True:
            command = connection.recv()
            connection.send(answer(lambda command=command: serve(*command)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone or has closed the pool
    finally:
        slots.close()


def frames_shape(description: Mapping[str, Any]) -> Shape | None:
    """Shape of one observation's frames, if the simulator tells it; otherwise frames are sent with the answer."""
    px = description["image_px"]
    return (len(CAMERAS), px, px, 3) if px else None


def _packed(result: SlotResult, block: FrameBlock, shape: Shape | None) -> Message:
    seen = result.observation
    assert seen is not None
    frames: np.ndarray | None = seen.frames
    if shape and frames.shape == shape:
        block.view(result.slot, shape)[...] = frames
        frames = None
    return ("ok", replace(result, observation=None), seen.state_deg, frames)


def unpacked(message: Message, block: FrameBlock, shape: Shape | None) -> SlotResult:
    """In the parent: the result of an "ok" message, with frames of its own."""
    _, result, state_deg, frames = message
    if frames is None:
        assert shape is not None
        frames = block.view(result.slot, shape).copy()  # the next command of this slot overwrites the place
    return replace(result, observation=Observation(frames, state_deg))


def answer(work: Callable[[], Message]) -> Message:
    """The message that `work` makes, or what went wrong, as `worker_main` lists them."""
    try:
        return work()
    except errors.UsageError as error:
        return ("user_error", type(error).__name__, error.what, error.where, error.remedy)
    except Exception:
        return ("crash", traceback.format_exc())
