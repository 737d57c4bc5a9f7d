"""Build a component from its `_target_` node: Hydra's instantiate behind an allow-list.

In: a plain mapping with `_target_` and, as keyword arguments, the runtime objects that no file can hold. Out: the
object. A configuration file is data: nothing outside `vla_rl` and the packages listed under `plugins:` is imported
for it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from hydra.utils import instantiate

from vla_rl.config.targets import allowed, targets
from vla_rl.errors import ConfigError


def build(
    node: Mapping[str, Any],
    runtime: Mapping[str, Any] | None = None,
    *,
    plugins: Iterable[str] = (),
    where: str = "component",
) -> Any:
    """Instantiate `node["_target_"]` with the node's other keys and the runtime objects.

    Args:
        node: plain mapping (no OmegaConf type).
        runtime: objects on offer that are no configuration, e.g. the policy for a sampler; a constructor gets those
            that it has a parameter for.
        plugins: packages besides `vla_rl` that may be built from.
        where: configuration path, for messages.

    Raises:
        ConfigError: a target outside the allow-list, one that does not exist, an unknown or a missing key.
    """
    if os.environ.get("HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE"):
        raise ConfigError(
            "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE is set",
            where="environment",
            remedy="unset it; it switches off a safety check",
        )
    plugins = tuple(plugins)
    for path, target in targets(node, where):
        _check_allowed(target, plugins, path)
    target = _locate(str(node["_target_"]), plugins, where)
    config = {k: v for k, v in node.items() if k != "_target_"}
    parameters = inspect.signature(target).parameters
    wanted = {name: value for name, value in (runtime or {}).items() if name in parameters}
    _check_arguments(target, config, wanted, where)
    return instantiate({"_target_": node["_target_"], **config}, _partial_=True, _convert_="all")(**wanted)


def _check_allowed(target: str, plugins: tuple[str, ...], where: str) -> None:
    if not allowed(target, plugins):
        raise ConfigError(
            f"_target_ {target!r} is outside the allowed packages ({', '.join(('vla_rl', *plugins))})",
            where=where,
            remedy="add its top-level package to plugins: if you trust its code",
        )


def _locate(target: str, plugins: tuple[str, ...], where: str) -> Any:
    module_name, _, attribute = target.rpartition(".")
    if not target.startswith("vla_rl.") and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a console script does not look for plugins in the working directory by itself
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"_target_ {target!r} does not exist: {error}",
            where=where,
            remedy="check the spelling; a plugin must be installed or lie in the working directory",
        ) from error
    # An alias such as vla_rl.paths.os.system starts with an allowed name but lives elsewhere.
    _check_allowed(f"{getattr(found, '__module__', '')}.{attribute}", plugins, where)
    return found


def _check_arguments(target: Any, config: Mapping[str, Any], runtime: Mapping[str, Any], where: str) -> None:
    parameters = inspect.signature(target).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in config:
        if name not in parameters:
            close = get_close_matches(name, parameters, n=1)
            raise ConfigError(
                f"{target.__name__} takes no key {name!r}",
                where=f"{where}.{name}",
                remedy=f"did you mean {close[0]}?"
                if close
                else f"its keys are: {', '.join(p for p in parameters if p not in runtime)}",
            )
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in config and n not in runtime]
    if missing:
        raise ConfigError(
            f"{target.__name__} needs {', '.join(missing)}",
            where=where,
            remedy="add the missing keys to the option file",
        )
