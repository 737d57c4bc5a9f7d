"""The pages that are written by programs say what the schema, `conf/` and the commands say now."""

import dataclasses
import re
import sys

import command_reference
import config_reference
import pytest

from vla_rl.cli.main import COMMANDS
from vla_rl.cli.prereg import ACTIONS
from vla_rl.config.compose import compose
from vla_rl.config.keys import key_help
from vla_rl.config.schema import ROOTS, key
from vla_rl.config.schema.key import unit

ANEW = "out of date: make docs writes it anew"


def test_the_page_of_keys_is_what_the_schema_and_the_options_say():
    assert config_reference.PAGE.read_text() == config_reference.page(), ANEW


@pytest.mark.skipif(sys.version_info[:2] != (3, 12), reason="other versions of Python word their help differently")
def test_the_page_of_commands_is_what_they_print():
    assert command_reference.PAGE.read_text() == command_reference.page(), ANEW


def test_every_command_and_action_has_its_heading():
    headings = set(re.findall(r"^#+ (vla-rl.*)$", command_reference.PAGE.read_text(), flags=re.M))
    assert {f"vla-rl {name}" for name in COMMANDS} | {f"vla-rl prereg {name}" for name in ACTIONS} <= headings


@pytest.mark.parametrize("primary", ROOTS)
def test_every_key_that_a_command_lists_is_on_the_page_with_its_meaning(primary):
    rows = [line.split(" | ") for line in config_reference.PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {(row[0].strip("| `"), row[-1].removesuffix(" |")) for row in rows}
    listed = key_help(primary, compose(primary, allow_missing=True).tree)
    assert {(path, config_reference._prose(text)) for path, _, text in listed} <= told


def test_the_readers_of_sections_are_found_in_the_sources():
    taken = config_reference.takers()
    sections = [table for table in config_reference.tables() if table.target is None and "." not in table.path]
    assert sections and all(taken.get((table.path, table.schema.__name__)) for table in sections)
    assert "vla_rl/cli/train.py" in taken["optim", "OptimConfig"]


def test_a_unit_is_the_last_word_of_a_name_or_stated_and_words_and_switches_have_none():
    @dataclasses.dataclass
    class Some:
        far_cm: float = key(1.0, "")
        wait_s: float | None = key(None, "")
        pull: float = key(1.0, "", unit="N")
        spread_nats: float = key(1.0, "", unit="nats a token")
        keep_rows: bool = key(False, "")
        share: float = key(0.5, "")

    units = [unit(field) for field in dataclasses.fields(Some)]
    assert units == ["cm", "seconds", "N", "nats a token", None, None]
