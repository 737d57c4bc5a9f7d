"""A real but very small twin (under 0.5 M parameters) and a codec fitted on smooth random chunks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from expert_support import SIZES, taught
from policy_support import MINI, TASK, picture, smooth_chunks
from release_support import write_release

from vla_rl.config.schema import TwinConfig
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import Observation


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many torch threads, by indirect parametrisation."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def stats() -> NormStats:
    chunks = smooth_chunks(1500, 0)
    return NormStats.fit(chunks[:, 0], chunks.reshape(-1, 6), tag="so101_test", quantile=0.001, horizon=30)


@pytest.fixture(scope="session")
def codec(stats: NormStats) -> FastCodec:
    return FastCodec.fit(stats.action.normalise(smooth_chunks(1500, 0)), scale=15.0, vocabulary=512)


@pytest.fixture(scope="session")
def policy(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """Shared: tests that change weights must build their own."""
    return new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)


@pytest.fixture(scope="module")
def flow_policy(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """The small twin with an action expert that has learned something."""
    policy = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    taught(new_expert(policy, SIZES, seed=0))
    return policy


@pytest.fixture(scope="session")
def boat_policy(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """The full-size twin, fresh weights; shared."""
    return new_twin(
        codec=codec, stats=stats, task=TASK, seed=0, architecture=TwinArchitecture.of(TwinConfig(), image_px=112)
    )


@pytest.fixture(scope="session")
def observations() -> list[Observation]:
    rng, states = np.random.default_rng(5), smooth_chunks(8, 5)[:, 0]
    return [Observation(picture(rng), state) for state in states]


@pytest.fixture(scope="session")
def release(codec: FastCodec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in the layout of a MolmoAct2 release; shared: tests that damage it take `release_copy`."""
    return write_release(tmp_path_factory.mktemp("release") / "MolmoAct2-Tiny", codec)


@pytest.fixture
def release_copy(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "release"))
