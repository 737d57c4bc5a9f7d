"""Drafts that wait to be frozen can be frozen: the linter has nothing against them and the overrides that they name."""

import shutil

import pytest
from bench import prereg
from encoded import EXPERIMENTS

DRAFTS = sorted(
    path.parent.name for path in EXPERIMENTS.glob("*/draft.yaml") if not (path.parent / "registration.yaml").exists()
)


def overrides(text: str) -> list[str]:
    """What stands under `# Overrides of freeze:`, in lines that are indented."""
    lines = iter(text.splitlines())
    assert any(line == "# Overrides of freeze:" for line in lines)
    found: list[str] = []
    for line in lines:
        if not line.startswith("#   "):
            return found
        found += line[1:].split()
    return found


@pytest.mark.parametrize("id", DRAFTS)
def test_the_linter_has_nothing_against_a_draft(bench, capsys, id):
    bench.folder(id).mkdir()
    shutil.copy(EXPERIMENTS / id / "draft.yaml", bench.folder(id))
    named = overrides((EXPERIMENTS / id / "draft.yaml").read_text())
    found = prereg("freeze", id, *named, "--absent", "--check")
    assert found == 0, "".join(capsys.readouterr())
