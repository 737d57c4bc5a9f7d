"""The toy world and the tiny policy live beside the rollout tests; worker processes inherit this path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))

import pytest


@pytest.fixture(scope="module")
def rows():
    """Rows of three groups of two draws, sampled once a module."""
    from one_update import sampled_rows

    return sampled_rows()
