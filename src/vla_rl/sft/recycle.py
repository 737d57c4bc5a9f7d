"""The stored rollouts of a training run as jobs for a recording.

In: the directory of a run that kept its rows. Out: a `DemoRecipe`, or an error that says what the run lacks. Rollouts
of seeds that are held out, by band or by the run's own evaluations, are refused before anything is replayed; replaying
is `sources`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_rl.errors import UsageError
from vla_rl.policy.chunks import ChunkCodec
from vla_rl.rl.rundir import CONFIG, stored_config
from vla_rl.seeds import check_disjoint, check_use, parse_seeds
from vla_rl.sft.merge import OWN_META
from vla_rl.sft.recipe import RECIPE_FILE, DemoRecipe, RolloutJobs, scene_of
from vla_rl.sft.shards import STAGING

KEEP_ROWS = "train with checkpoint.keep_rows=true; rows that are gone cannot be made again from the metrics"


def rollout_recipe(
    run: str, *, task: str, success_only: bool, shard_episodes: int, only: frozenset[str] | None = None
) -> DemoRecipe:
    """A recipe of the stored rollouts of a run, in the run's own simulator.

    Args:
        run: the run directory, as the user wrote it.
        task, success_only, shard_episodes: as in `DemoRecipe`.
        only: the stored episodes to take (those of a recording that goes on); None for all that there are now.

    Raises:
        UsageError: no run, an evaluation, a run without kept rows, or one whose policy names no checkpoint.
        ConfigError: a stored episode has a seed that is held out, or the policy's codec is gone.
    """
    directory = Path(run)
    if not (directory / CONFIG).is_file():
        evaluation = (directory / "eval.json").is_file()
        raise UsageError(
            "an evaluation keeps no rows to replay" if evaluation else "there is no training run here",
            where=f"demos.from_run={run}",
            remedy=KEEP_ROWS if evaluation else "name the directory of a `vla-rl train` run",
        )
    config = stored_config(directory)
    stored = sorted((directory / "waves").glob("step_*/seed*.npz"), key=_seed_and_draw)
    if not stored:
        raise UsageError("the run kept no rows to replay", where=str(directory / "waves"), remedy=KEEP_ROWS)
    seeds = sorted({_seed_and_draw(path)[0] for path in stored})
    check_use(seeds, "train", where=f"demos.from_run={run}")
    check_disjoint(seeds, parse_seeds(config["eval"]["seeds"]))
    policy = _policy(config, run)
    ChunkCodec.of_policy(policy)  # a missing one is told here, not by a recording process
    episodes = {f"{path.parent.name}/{path.stem}": path for path in stored}
    taken = tuple(name for name in episodes if only is None or name in only)
    jobs = RolloutJobs(run, policy, taken, tuple(_sha256(episodes[name]) for name in taken))
    env, plugins = config["sim"], tuple(config["plugins"])
    return DemoRecipe(env, plugins, scene_of(env, plugins), task, success_only, shard_episodes, rollouts=jobs)


def recorded_rollouts(directory: Path) -> frozenset[str] | None:
    """The stored episodes that a recording in `directory` was started with, or None if it has no recipe yet."""
    for path in (directory / STAGING / RECIPE_FILE, directory / OWN_META):
        if path.is_file():
            return frozenset(json.loads(path.read_text())["recipe"]["rollouts"]["episodes"])
    return None


def _policy(config: Mapping[str, Any], run: str) -> dict[str, Any]:
    if not isinstance(config["policy"].get("checkpoint"), str):
        raise UsageError(
            "the run's policy names no checkpoint, so its tokens cannot be decoded",
            where=f"policy in {run}/{CONFIG}",
            remedy="recycle runs of policies with policy.checkpoint",
        )
    return dict(config["policy"])


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seed_and_draw(path: Path) -> tuple[int, int, str]:
    """From ``seed200000_draw00``; the step settles what is left."""
    seed, draw = path.stem.split("_")
    return int(seed.removeprefix("seed")), int(draw.removeprefix("draw")), path.parent.name
