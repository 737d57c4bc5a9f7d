"""What every command's argument line shares: overrides, --json, --help-keys."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.config.schema import key_help


@dataclass(frozen=True)
class Options:
    """A parsed argument line."""

    overrides: tuple[str, ...]
    json: bool


def parse(command: str, argv: Sequence[str], description: str, examples: Sequence[str]) -> Options:
    """Split an argument line into Hydra overrides and flags; prints help and exits for --help and --help-keys."""
    parser = argparse.ArgumentParser(
        prog=f"vla-rl {command}",
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; --help-keys lists them all")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (messages go to stderr)")
    parser.add_argument("--help-keys", action="store_true", help="list every key with its default and meaning")
    parsed = parser.parse_intermixed_args(list(argv))
    if parsed.help_keys:
        width = max(len(path) for path, _, _ in key_help())
        for path, default, text in key_help():
            print(f"{path:<{width}}  {text} (default {default})")
        sys.exit(0)
    return Options(tuple(parsed.overrides), parsed.json)


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, allow_nan=False))
