"""The tests that the pages on properties and lessons name exist, so that neither can promise more than is tested."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def collected(path: Path) -> set[str]:
    """Names of the tests of a file, as pytest would find them there; none if there is no such file."""
    body = ast.parse(path.read_text()).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("page", "least"), [("properties.md", 90), ("lessons.md", 50)])
def test_every_test_that_a_page_names_exists(page, least):
    text = (ROOT / "docs" / page).read_text()
    named = set(NAMED.findall(text))
    assert len(named) >= least and text.count("`tests/") == len(NAMED.findall(text))  # none is written otherwise
    assert not {f"{path}::{test}" for path, test in named if test not in collected(ROOT / path)}


def test_every_lesson_names_a_test():
    sections = re.split(r"^## ", (ROOT / "docs" / "lessons.md").read_text(), flags=re.M)[1:]
    assert len(sections) >= 18 and all(NAMED.search(section) for section in sections)
