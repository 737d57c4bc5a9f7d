"""Real demonstrations of a few seeds, shared by the tests of this layer, and a twin that trains in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sft_support import record, tiny_twin

from vla_rl.policy.policy import VlaPolicy
from vla_rl.sft.dataset import Demonstrations, open_demonstrations


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three seeds in three shards, recorded by one worker."""
    path = tmp_path_factory.mktemp("demos")
    record(path)
    return path


@pytest.fixture(scope="session")
def demos(demo_dir: Path) -> Demonstrations:
    return open_demonstrations(demo_dir, chunk_ticks=30, frame_stride=10)


@pytest.fixture
def twin(demos: Demonstrations) -> VlaPolicy:
    """A fresh tiny twin with statistics and codec of the demonstrations; the same weights every time."""
    torch.set_num_threads(1)
    return tiny_twin(demos)
