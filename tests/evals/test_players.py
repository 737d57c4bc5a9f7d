"""Processes that play episodes: order, errors by name, an end for all when the caller has enough."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from toy_world import spec

from vla_rl.errors import RolloutError
from vla_rl.evals.players import own_environment, play_each


def place(seed: int, offset: int) -> int:
    """In a child process."""
    own_environment().reset(seed=seed)
    return seed + offset


def die(seed: int) -> int:
    """In a child process."""
    if seed == 301:
        os.kill(os.getpid(), signal.SIGKILL)
    return seed


def nap(seed: int, directory: Path) -> int:
    """In a child process: leaves a mark, and takes a moment, so that a thousand of these take minutes."""
    (directory / str(seed)).touch()
    time.sleep(0.2)
    return seed


def players(function, *arguments, workers=2):
    return play_each(function, *arguments, workers=workers, env_spec=spec(), plugins=("toy_world",))


def test_results_come_in_order_and_every_process_has_its_environment():
    assert list(players(place, range(300, 306), [1, 2, 3, 4, 5, 6])) == [301, 303, 305, 307, 309, 311]


def test_a_process_that_dies_is_an_error_with_a_remedy():
    with pytest.raises(RolloutError, match="died without a word"):
        list(players(die, range(300, 304), workers=1))


def test_what_a_caller_with_enough_has_not_asked_for_is_not_played(tmp_path):
    with closing(players(nap, range(1000), [tmp_path] * 1000, workers=1)) as playing:
        assert next(playing) == 0
    assert 0 < len(list(tmp_path.iterdir())) < 1000
