"""Starting in a new directory or going on in an old one: the same for every command that can be resumed.

In: an override line. Out: the configuration to work with, and its directory. A job that goes on does so with the
configuration that lies in its directory; only what cannot change a result may be given anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from vla_rl.cli.startup import claim_directory
from vla_rl.config.compose import compose
from vla_rl.config.keys import check_values, key_types, version_gap
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import ROOTS
from vla_rl.errors import ConfigError, UsageError
from vla_rl.files import write_atomic
from vla_rl.rl.rundir import CONFIG, stored_config

# What may differ when a job goes on: how long and how parallel it works, never what it computes.
FREE = ("run.max_wall_s",)
FREE_WITH_POOL = (*FREE, "pool.workers", "pool.timeout_s", "pool.address")
# A budget may be raised. Smaller micro-batches, and more or fewer processes, give the same gradient up to rounding.
FREE_OF_TRAINING = (
    *FREE_WITH_POOL,
    *(f"budget.{limit}" for limit in ("gpu_h", "wall_h", "env_ticks")),
    *(f"optim.microbatch_{unit}" for unit in ("rows", "tokens")),
    "optim.moments",  # the numbers are the same
    *(f"distributed.{key}" for key in ("update", "timeout_s")),
)


def compose_or_resume(primary: str, overrides: Sequence[str], free: Sequence[str]) -> ConfigReader:
    """Compose the command line, or take the stored configuration that ``run.resume=DIR`` names.

    Args:
        primary: primary configuration.
        overrides: the command line.
        free: keys beside `run.resume` that may be given when a job goes on, e.g. ``run.max_wall_s``.

    Raises:
        UsageError: another key is given beside `run.resume`, or there is nothing to resume, or another command's or
            version's.
        ConfigError: a key that the stored configuration does not have, or a value of another type.
    """
    given: dict[str, str] = {key: text for key, _, text in (override.partition("=") for override in overrides)}
    if given.get("run.resume") in (None, "null"):
        return compose(primary, overrides)
    refused = [key for key in given if key not in ("run.resume", *free)]
    if refused:
        raise UsageError(
            f"a stopped job goes on with its own configuration; {refused[0]} would change it",
            where="command line",
            remedy=f"beside run.resume only {', '.join(free)} may be given",
        )
    directory = given["run.resume"]
    tree = stored_config(Path(directory))
    _check_origin(primary, tree, directory)
    # The limit of the launch that stopped is not this one's.
    tree["run"] = {**tree["run"], "resume": directory, "dir": directory, "max_wall_s": None}
    types = key_types(primary, tree)
    for path in sorted(given.keys() & set(free)):
        if path not in types:
            raise ConfigError(
                f"the configuration of this job has no key {path}", where=path, remedy="go on without giving it"
            )
        section, _, key = path.partition(".")
        tree[section][key] = _value(path, given[path], types[path].split(" | "))
    check_values(primary, tree)
    return ConfigReader(tree, tuple(overrides))


def _check_origin(primary: str, tree: dict[str, Any], directory: str) -> None:
    """Refuse the configuration of another command, or one that another version has written."""
    sections = {name: {field.name for field in dataclasses.fields(root)} for name, root in ROOTS.items()}
    strangers = {name: len(set(tree) ^ known) for name, known in sections.items()}
    if min(strangers.values()) < strangers[primary]:
        raise UsageError(
            "another command was working here", where=directory, remedy="run.resume goes with the command that stopped"
        )
    missing, unknown = version_gap(primary, tree)
    if missing or unknown:
        told = [f"{word} {', '.join(names)}" for word, names in (("lacks", missing), ("has", unknown)) if names]
        raise UsageError(
            f"another version of this package was working here: its configuration {' and '.join(told)}",
            where=f"{directory}/{CONFIG}",
            remedy="go on with the version that the job was started with, or start a new one",
        )


def open_directory(reader: ConfigReader, directory: Path) -> Path:
    """The directory of a job that keeps its own records: created with its configuration, or the one to go on in.

    Raises:
        UsageError: it is not empty and the job was not told to go on in it, or it cannot be created.
    """
    if not reader.value("run.resume"):
        claim_directory(directory)
        write_atomic(directory / CONFIG, yaml.safe_dump(reader.tree, sort_keys=False, allow_unicode=True).encode())
    return directory


def _value(path: str, text: str, types: Sequence[str]) -> float | int | str | None:
    """The value of a key that takes one of `types`."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if value is None and "None" in types:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and "int" in types:
        return value
    if isinstance(value, str) and "str" in types:
        return value
    if isinstance(value, int | float | str) and not isinstance(value, bool) and "float" in types:
        with suppress(ValueError):
            return float(value)  # of text, too: 1e3 is a string to YAML
    takes = " or ".join(types).replace("None", "null")
    raise ConfigError(f"{text!r} is not of its type", where=path, remedy=f"it takes {takes}")
