"""Joining a Ray cluster: one of this run's own, or one that is there already.

In: the address of a cluster, or what one of our own must hold. Out: a connection, or one error that says what is wrong
within `PATIENCE_S`. A connection that fails cannot be interrupted in the process that tries it: Ray goes on trying for
minutes. Therefore a child process tries first. Left out: what runs on the cluster (`ray_pool`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vla_rl.errors import ConfigError, MachineError
from vla_rl.rollout.placement import Node

PATIENCE_S = 30.0
KNOCK_S = 5.0
_REHEARSAL = """
import json, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(json.dumps(" ".join(str(error).split())))
    sys.exit(1)
"""


def require_ray() -> Any:
    """The package.

    Raises:
        MachineError: it is not installed.
    """
    # Ray prints what its nodes report on stdout, which is the commands' own; a lost worker is an event of the pool.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MachineError(
            "pool=ray needs the package ray, which is not installed",
            where="pool=ray",
            remedy="pip install 'vla-rl[ray]', or use pool=processes",
        ) from error
    return ray


def join(ray: Any, address: str | None, own: Mapping[str, float]) -> Callable[[], None]:
    """Connect this process; returns what ends the connection, and with it a cluster of our own.

    A process that is connected already, because the program around us has seen to it, stays so.

    Args:
        ray: the package.
        address: ``host:port`` of the cluster's head; None starts a cluster on this machine.
        own: resources of a cluster that is started here; ``CPU`` is one of them.

    Raises:
        ConfigError: that is no address.
        MachineError: nobody there, no Ray there, or another version of it.
    """
    if ray.is_initialized():
        return _stay(ray, address)
    if address is not None:
        _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    with _own_signals():
        if address is None:
            others = {name: amount for name, amount in own.items() if name != "CPU"}
            ray.init(address="local", num_cpus=own["CPU"], resources=others, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    return ray.shutdown


def nodes(ray: Any) -> list[Node]:
    """The nodes that are up."""
    return [Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"]) for n in ray.nodes() if n["Alive"]]


def _stay(ray: Any, address: str | None) -> Callable[[], None]:
    present = ray.get_runtime_context().gcs_address
    if address not in (None, present):
        raise ConfigError(
            f"this process is connected to the cluster at {present} already",
            where=f"pool.address={address}",
            remedy="leave pool.address away, or call ray.shutdown() before",
        )
    return lambda: None


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ConfigError(
            f"{address!r} is no address of a cluster",
            where="pool.address",
            remedy="give host:port of its head, as `ray start --head` prints it; null starts one on this machine",
        )
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error) or type(error).__name__) from None
    try:
        command = [sys.executable, "-c", _REHEARSAL, address]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"no Ray answers there within {PATIENCE_S:g} s") from None
    if tried.returncode:
        lines = (tried.stdout or tried.stderr).strip().splitlines() or [f"code {tried.returncode}"]
        raise _unreachable(address, json.loads(lines[-1]) if tried.stdout else lines[-1])


def _unreachable(address: str, why: str) -> MachineError:
    return MachineError(
        f"the Ray cluster at {address} cannot be joined: {why}",
        where=f"pool.address={address}",
        remedy="see that its head is up and that this machine is a node of it (`ray start --address=HOST:PORT` with "
        "the same versions of Ray and Python, and the token if it wants one), or leave pool.address away: that starts "
        "one on this machine",
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Connecting sets a handler for SIGTERM; the commands have one of their own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
