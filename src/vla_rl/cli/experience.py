"""What an update learns from: waves, or the demonstrations that the section `experience` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.config.schema import ExperienceConfig, GeometryConfig, LossConfig, RunConfig
from vla_rl.errors import ConfigError
from vla_rl.seeds import check_disjoint

if TYPE_CHECKING:
    from vla_rl.rl.rundir import RunDir
    from vla_rl.sft.demonstrated import DemonstratedRows


def check_experience(experience: ExperienceConfig, loss: LossConfig, geometry: GeometryConfig) -> None:
    """Refuse keys that do not go together, before anything is loaded.

    Raises:
        ConfigError: naming the key.
    """
    demos, rows, pinned = experience.demos, experience.rows, experience.recipe_sha256
    if demos is None:
        given = [name for name, value in (("rows", rows), ("recipe_sha256", pinned)) if value is not None]
        if given:
            raise ConfigError(
                f"experience.{given[0]} is about demonstrations, and the run has none",
                where=f"experience.{given[0]}",
                remedy="name them with experience.demos=DIR, or leave it away",
            )
        return
    if rows is None:
        raise ConfigError(
            "nobody says how many rows of the demonstrations an update takes",
            where="experience.rows",
            remedy="for a control of equal gradient compute the mean of `rows` in the other run's train.jsonl",
        )
    from vla_rl.rl.demonstrated import check_constants

    check_constants(loss, geometry)


def demonstrated(
    experience: ExperienceConfig,
    job: RunConfig,
    *,
    policy: Any,
    scene: dict[str, Any],
    held_out: Sequence[int],
    run_dir: RunDir,
) -> DemonstratedRows | None:
    """The demonstrations of a run, on record in its manifest; None if it plays waves.

    Args:
        scene: what the run's simulator says of itself.
        held_out: seeds that the run is evaluated on.

    Raises:
        ConfigError: recorded in another scene, or of a seed that is held out.
        IntegrityError: another recipe than the pinned one, or others than those of the run's first launch.
        UsageError: no dataset of `vla-rl demos`, or too small a one.
    """
    if experience.demos is None or experience.rows is None:
        return None
    from vla_rl.sft.demonstrated import DemonstratedRows, check_recipe, check_scene

    rows = DemonstratedRows(
        Path(experience.demos), policy, seed=job.seed, count=experience.rows, threads=job.threads
    )  # fmt: skip
    check_scene(rows.demos, scene)
    check_disjoint(rows.demos.dataset.seeds, held_out, where="experience.demos and eval.seeds")
    record = rows.record
    check_recipe(record, experience.recipe_sha256)
    run_dir.record_demonstrations(record)
    return rows
