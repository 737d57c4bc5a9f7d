"""Episodes played one by one in processes of their own, each with one environment.

In: a function, what it is called with, and an environment spec. Out: its results in order. The function runs in a child
process and gets the environment of that process from `own_environment`. The caller's process never loads a graphics
library: torch's compiler and a software rasteriser do not share one.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from vla_rl.config.build import build
from vla_rl.errors import RolloutError


def play_each[Result](
    function: Callable[..., Result],
    *arguments: Sequence[Any],
    workers: int,
    env_spec: Mapping[str, Any],
    plugins: Sequence[str],
) -> Generator[Result]:
    """``function(*each)`` for each of the zipped `arguments`, in order.

    Args:
        function: of a module, so that a child process finds it.
        workers: most processes.
        env_spec: plain dict with `_target_`.
        plugins: packages besides `vla_rl` that the environment may come from.

    Raises:
        RolloutError: a process died.
        Exception: whatever a call raised in its process.
    """
    with ProcessPoolExecutor(
        max_workers=min(workers, max(1, len(arguments[0]))),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(dict(env_spec), tuple(plugins)),
    ) as pool:
        try:
            yield from pool.map(function, *arguments)
        except BrokenProcessPool as error:
            raise RolloutError(
                "a process that plays episodes died without a word",
                where=str(env_spec.get("_target_")),
                remedy="look for memory pressure or GL driver errors, and repeat the command",
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # or leaving would wait for every episode
            raise


_spec: tuple[dict[str, Any], tuple[str, ...]] = ({}, ())


def _start(env_spec: dict[str, Any], plugins: tuple[str, ...]) -> None:
    global _spec
    _spec = (env_spec, plugins)


@functools.cache
def own_environment() -> Any:
    """This process's environment. Built with the first episode, whose error reaches the caller; a start's would not."""
    env_spec, plugins = _spec
    return build(env_spec, plugins=plugins, where="sim")
