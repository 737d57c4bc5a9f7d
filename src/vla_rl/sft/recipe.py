"""What a demonstration dataset is made of: everything that decides its content, and nothing that does not.

In: an environment node, and either the scripted expert's seeds and disturbances or the stored rollouts of a run. Out: a
frozen `DemoRecipe` and its jobs, cut into shards. Two recordings of one recipe are equal bit for bit, whatever the
number of workers and whatever was interrupted. How a job is done is `sources`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vla_rl.config.build import build
from vla_rl.config.demonstrations import recipe_digest
from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.files import write_atomic
from vla_rl.rollout.jsonl import dump_json
from vla_rl.seeds import check_use, parse_seeds

FORMAT, RECIPE_FILE = "vla_rl.demos.v2", "recipe.json"


@dataclass(frozen=True)
class ExpertJobs:
    """Episodes of the scripted expert.

    Attributes:
        seeds: attempted spawn seeds, as seed text; one job a seed.
        noise_share, miss_share: shares of noisy episodes and of episodes with a deliberate miss.
        noise_deg: range (low, high) of the noise's standard deviation.
        start_jitter_deg: standard deviation of the start pose of noisy episodes.
        calibration_error_deg: what the recording arm's six joints read too much: stored states and targets are the
            true ones plus this.
    """

    seeds: str
    noise_share: float
    miss_share: float
    noise_deg: tuple[float, ...]
    start_jitter_deg: float
    calibration_error_deg: tuple[float, ...]


@dataclass(frozen=True)
class RolloutJobs:
    """Stored rollouts of a training run, to be replayed.

    Attributes:
        run: the run directory.
        policy: configuration node of the policy that the run started from: its action codec and tables decode the
            stored tokens.
        episodes: stored episodes as ``step_0001/seed200000_draw00``, by seed and draw; one job each.
        files_sha256: SHA-256 of the file of each, which decides what is replayed.
    """

    run: str
    policy: dict[str, Any]
    episodes: tuple[str, ...]
    files_sha256: tuple[str, ...]


@dataclass(frozen=True)
class DemoRecipe:
    """Everything that decides what a demonstration dataset holds.

    Attributes:
        env: environment node (`_target_` and its keys).
        plugins: packages besides `vla_rl` that the environment may come from.
        scene: `protocol`, `scene_hash`, `look` and `image_px` of that environment.
        task: the instruction stored with every episode.
        success_only: whether failed episodes are left out; otherwise they are stored, and taught nowhere.
        shard_episodes: jobs a shard.
        expert, rollouts: where the episodes come from; exactly one is given.
    """

    env: dict[str, Any]
    plugins: tuple[str, ...]
    scene: dict[str, Any]
    task: str
    success_only: bool
    shard_episodes: int
    expert: ExpertJobs | None = None
    rollouts: RolloutJobs | None = None

    def jobs(self) -> tuple[Any, ...]:
        """A seed or a stored episode each, in the order of the dataset."""
        if self.rollouts is not None:
            return self.rollouts.episodes
        assert self.expert is not None
        return parse_seeds(self.expert.seeds)

    def shards(self) -> list[tuple[Any, ...]]:
        """The jobs of each shard, in order."""
        jobs = self.jobs()
        return [jobs[i : i + self.shard_episodes] for i in range(0, len(jobs), self.shard_episodes)]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, and equal to what is read back."""
        return json.loads(dump_json(asdict(self)))

    @property
    def digest(self) -> str:
        """See `vla_rl.config.demonstrations`."""
        return recipe_digest(self.as_dict())


def expert_recipe(
    env: dict[str, Any], expert: ExpertJobs, *, task: str, success_only: bool, shard_episodes: int
) -> DemoRecipe:
    """A recipe of the scripted expert in an environment.

    Raises:
        ConfigError: seeds of a band that is not open to demonstrations, a noise range that is none, or calibration
            errors that are not six angles.
    """
    check_use(parse_seeds(expert.seeds), "demos", where="demos.seeds")
    low_high = expert.noise_deg
    if len(low_high) != 2 or not 0 <= low_high[0] <= low_high[1]:
        raise ConfigError(
            f"{list(low_high)} is no range of noise", where="demos.noise_deg", remedy="e.g. demos.noise_deg=[0.5,2.0]"
        )
    error_deg = expert.calibration_error_deg
    if len(error_deg) != 6 or not all(map(math.isfinite, error_deg)):
        raise ConfigError(
            f"{list(error_deg)} is no angle for each of six joints",
            where="demos.calibration_error_deg",
            remedy="e.g. demos.calibration_error_deg=[2.5,-2.5,0,0,0,0]",
        )
    scene = scene_of(env, ())
    return DemoRecipe(env, (), scene, task, success_only, shard_episodes, expert=expert)


def scene_of(env: dict[str, Any], plugins: tuple[str, ...]) -> dict[str, Any]:
    """`protocol`, `scene_hash`, `look` and `image_px` of an environment node; None for what its simulator has no word
    for."""
    built = build(env, plugins=plugins, where="sim")
    said = built.describe() if hasattr(built, "describe") else {}
    return {
        "protocol": said.get("protocol", env.get("protocol")),
        "scene_hash": said.get("scene_hash", getattr(built, "scene_hash", None)),
        "look": env.get("look"),
        "image_px": int(built.observation_space["top"].shape[0]),
    }


def write_recipe(path: Path, recipe: DemoRecipe) -> None:
    """Write the recipe, or check that `path` holds the same one.

    Raises:
        UsageError: it holds another recipe.
        IntegrityError: it is of another format.
    """
    if path.exists():
        check_same(json.loads(path.read_text()), recipe, where=path)
    else:
        write_atomic(path, (dump_json({"format": FORMAT, "recipe": recipe.as_dict()}, indent=1) + "\n").encode())


def check_same(stored: dict[str, Any], recipe: DemoRecipe, *, where: Path) -> None:
    """Refuse to go on in a directory of another recipe.

    Raises:
        UsageError: it holds another recipe.
        IntegrityError: it is of another format.
    """
    if stored.get("format") != FORMAT:
        raise IntegrityError(
            f"demonstrations of format {stored.get('format')!r}, not {FORMAT!r}",
            where=str(where),
            remedy="record the demonstrations again, into a new directory",
        )
    changed = _changed(stored["recipe"], recipe.as_dict())
    if changed:
        raise UsageError(
            f"the directory holds demonstrations of another recipe (differs in {', '.join(changed)})",
            where=str(where),
            remedy="record into a new directory, or repeat the recipe to continue it",
        )


def _changed(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*new, *(name for name in old if name not in new)]
        return [leaf for name in names for leaf in _changed(old.get(name), new.get(name), f"{path}.{name}".strip("."))]
    return [] if old == new else [path]
