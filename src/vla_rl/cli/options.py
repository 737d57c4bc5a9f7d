"""What every command's argument line shares: examples, --json; and, where there are any, overrides and --help-keys."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PRIMARY = {"train": "config", "plan": "config"}  # commands whose primary configuration has another name


@dataclass(frozen=True)
class Options:
    """A parsed argument line, and when it was parsed (`started_s`, of the monotonic clock)."""

    overrides: tuple[str, ...]
    json: bool
    flags: Mapping[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)

    def left_s(self, limit_s: float | None) -> float | None:
        """What is left of `run.max_wall_s`, which counts from the start of the command: loading is part of the job."""
        return None if limit_s is None else max(0.0, limit_s - (time.monotonic() - self.started_s))


def parse(
    command: str,
    argv: Sequence[str],
    description: str,
    examples: Sequence[str],
    flags: Mapping[str, tuple[str | None, str]] | None = None,
) -> Options:
    """Split an argument line into Hydra overrides and flags; prints help and exits for --help and --help-keys.

    Args:
        flags: a command's own flags: name -> (what to call its value, help); a switch has no value to name.
    """
    parser = command_parser(command, description, examples)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; --help-keys lists them all")
    parser.add_argument(
        "--help-keys", action="store_true", help="list every key with its meaning and its value under these overrides"
    )
    for name, (metavar, text) in (flags or {}).items():
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        parser.add_argument(f"--{name}", help=text, **kind)
    parsed = parser.parse_intermixed_args(list(argv))
    if parsed.help_keys:
        from vla_rl.config.compose import compose  # Hydra, which commands without overrides do not need
        from vla_rl.config.keys import key_help

        primary = PRIMARY.get(command, command)
        rows = key_help(primary, compose(primary, parsed.overrides, allow_missing=True).tree)
        width = max(len(path) for path, _, _ in rows)
        for path, value, text in rows:
            print(f"{path:<{width}}  {text} [{value}]")
        sys.exit(0)
    given = vars(parsed)
    return Options(tuple(parsed.overrides), parsed.json, {name: given[name.replace("-", "_")] for name in flags or {}})


def command_parser(command: str, description: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A parser with what every command has: its name, a description, examples and --json."""
    parser = argparse.ArgumentParser(
        prog=f"vla-rl {command}",
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (messages go to stderr)")
    return parser


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, allow_nan=False))
