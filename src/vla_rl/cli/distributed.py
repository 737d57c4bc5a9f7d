"""Training under torchrun: which process runs the run, and what the others do.

In: torchrun's environment, the configuration. Out: on the leader (rank 0) what computes updates; a helper's whole life.
Helpers parse no command line: they build what they need from the configuration that the leader publishes. torch is
imported only where there is something to do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from vla_rl.cli.startup import prepare_torch
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import DistributedConfig, LossConfig, OptimConfig, RunConfig
from vla_rl.errors import EXIT_CRASH, EXIT_OK, UsageError, VlaRlError

FSDP2 = "fsdp2"
TORCHRUN = "torchrun --nproc-per-node 2 -m vla_rl.cli.main train ..."


def processes() -> int:
    """How many torchrun has started with this one; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_helper() -> bool:
    """Whether another process runs the run."""
    return processes() > 1 and os.environ["RANK"] != "0"


def refuse_torchrun(what: str) -> None:
    """Refuse what cannot be shared.

    Raises:
        UsageError: torchrun has started several processes.
    """
    if processes() > 1:
        raise UsageError(
            f"torchrun has started {processes()} processes, and {what}",
            where="torchrun",
            remedy="start it without torchrun",
        )


def check_distributed(settings: DistributedConfig) -> None:
    """Refuse a configuration that does not fit how the process was started.

    Raises:
        UsageError: several processes and no update to share, or the other way round.
    """
    if settings.update != FSDP2 and processes() > 1:
        raise UsageError(
            f"torchrun has started {processes()} processes, but the update is not shared",
            where="distributed.update",
            remedy="use distributed=fsdp2 (beside run.resume distributed.update=fsdp2), or start it without torchrun",
        )
    if settings.update == FSDP2 and "TORCHELASTIC_RUN_ID" not in os.environ:
        raise UsageError(
            "the update is to be shared by processes that torchrun starts, and torchrun has started none",
            where="distributed.update",
            remedy=f"start it with {TORCHRUN}, or alone with distributed.update=none",
        )


@contextmanager
def shared(settings: DistributedConfig, reader: ConfigReader, device: str) -> Iterator[Callable[..., Any]]:
    """What makes the learner of a run, for as long as the block runs; helpers end with it.

    Raises:
        LostRank: one of them has ended before.
        UsageError: the configuration has something that cannot be shared.
    """
    timeout_s = settings.timeout_s
    if settings.update == FSDP2 and reader.tree["optim"]["moments"] != "device":
        raise UsageError(
            "moments that are shared stay where the shares are",
            where="optim.moments",
            remedy="use optim.moments=device, or distributed.update=none",
        )
    if settings.update != FSDP2:
        from vla_rl.rl.learner import Learner

        yield Learner
        return
    from vla_rl.rl.sharedlearner import SharedLearner
    from vla_rl.rl.team import Team

    team = Team()
    team.publish(reader.tree, device, timeout_s)
    with team.led():
        team.connect(device, timeout_s)
        yield partial(SharedLearner, team)


def help_out() -> int:
    """A helper's life: no output, no files; an exit code."""
    from vla_rl.rl.team import INTERRUPTED, Team

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    team = Team()
    try:
        _help(team)
    except KeyboardInterrupt:
        team.leave(INTERRUPTED)
        return EXIT_CRASH
    except Exception as error:
        told = str(error) if isinstance(error, VlaRlError) else f"{type(error).__name__}: {error}"
        team.leave(told)
        print(f"vla-rl, rank {team.rank}: {told}", file=sys.stderr)
        return EXIT_CRASH
    return EXIT_OK


def _help(team: Any) -> None:
    published = team.published()
    if published is None:
        return
    tree, device, timeout_s = published
    reader = ConfigReader(tree)
    settings = reader.section("run", RunConfig)
    team.connect(prepare_torch(device, settings.threads, settings.seed), timeout_s)
    from vla_rl.rl.settings import UpdateSettings
    from vla_rl.rl.sharedlearner import help_out

    loss, optim = reader.section("loss", LossConfig), reader.section("optim", OptimConfig)
    surface = reader.component("surface", run_seed=settings.seed)
    policy = reader.component("policy", device=device)
    help_out(team, policy, surface, optim, UpdateSettings.of(loss, optim, reader.component("token_loss")))
