"""The toy run with guards, gates and a world of its own, and what it leaves behind."""

from __future__ import annotations

import pytest
from guarded_world import guarded
from test_trainer import finish
from toy_run import toy_trainer

from vla_rl.config.schema import BudgetConfig, GatesConfig, TripwiresConfig
from vla_rl.errors import EXIT_STOPPED, StoppedRun
from vla_rl.rl.checkpoint import checkpoints, load_checkpoint
from vla_rl.rl.gates import Gates
from vla_rl.rl.guards import Guards
from vla_rl.rollout.pool import SerialPool

FIRST = 200000  # two seeds a step: step k trains on FIRST + 2 (k - 1) and the next


def trainer_of(path, *, world=None, wires=None, budget=None, bars=None, parity=None, **settings):
    """The toy run with guards of its own; `world` are arguments of the guarded world."""
    return toy_trainer(
        path,
        pool=SerialPool(env_spec=guarded(**(world or {})), plugins=("guarded_world",)),
        guards=Guards(TripwiresConfig(**(wires or {})), BudgetConfig(**(budget or {}))),
        gates=Gates(GatesConfig(**(bars or {})), parity),
        **settings,
    )


def stop(path, **settings):
    """Run until it stops itself; returns the error."""
    with pytest.raises(StoppedRun) as stopped:
        finish(trainer_of(path, **settings))
    assert stopped.value.exit_code == EXIT_STOPPED
    return str(stopped.value)


def out_of_time_at(moment, trainer):
    """Let the wall limit be reached at the first event of that kind."""

    def on_event(event):
        if isinstance(event, moment):
            trainer.max_wall_s = 0.0

    trainer.on_event = on_event


def saved(path):
    return {p.name: load_checkpoint(p) for p in checkpoints(path / "checkpoints")}


def wave(path, step):
    return sorted(p.name for p in (path / "waves" / f"step_{step:04d}").glob("*.npz"))
