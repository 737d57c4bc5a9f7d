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


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The run that no guard disturbs, with the weights after each step."""
    from guarded_run import trainer_of
    from test_trainer import finish

    from vla_rl.rl import events

    path, digests = tmp_path_factory.mktemp("plain") / "run", {}
    trainer = trainer_of(path)
    trainer.on_event = lambda event: (
        digests.update({event.step: trainer.policy.digest()}) if isinstance(event, events.StepDone) else None
    )
    finish(trainer)
    return path, digests
