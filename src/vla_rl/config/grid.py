"""The overrides of a multirun, taken apart: one list of overrides a job, and what is meant for the launcher.

In: override strings, values with commas among them. Out: a `Grid`. Grammar and order are those of Hydra's
BasicSweeper. Left out: whether a job's configuration composes (`compose` tells), and how jobs are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException, OverrideParseException

from vla_rl import paths
from vla_rl.config.compose import quote_seeds
from vla_rl.errors import ConfigError, UsageError

LAUNCHER_KEYS = ("hydra/launcher", "hydra.launcher.")


@dataclass(frozen=True)
class Grid:
    """The jobs of a multirun.

    Attributes:
        jobs: the overrides of each, all of them, in the order in which the last key varies fastest.
        swept: keys that were given several values (or a range, or a choice of one).
        values: theirs, for each job: what is meant, without the quotes and escapes of the grammar.
        launcher: overrides of Hydra's launcher, e.g. ``hydra/launcher=joblib``.
    """

    jobs: tuple[tuple[str, ...], ...]
    swept: tuple[str, ...]
    values: tuple[dict[str, str], ...]
    launcher: tuple[str, ...]


def expand(overrides: Sequence[str], *, unswept: Sequence[str] = ()) -> Grid:
    """Every combination of the values given; a single job where nothing has more than one.

    Args:
        overrides: e.g. ``optim.lr=3e-7,1e-6``, ``loss.kl_beta=choice(0,1)`` or ``hydra.launcher.n_jobs=2``.
        unswept: keys that may be given one value only.

    Raises:
        ConfigError: an override that cannot be read or swept over, or that adds or deletes a key.
        UsageError: a key of Hydra that is not the launcher's, or several values where one is wanted.
    """
    parsed = _parse([quote_seeds(override) for override in overrides])
    launcher, own = [], []
    for override in parsed:
        key, line = override.get_key_element(), override.input_line or ""
        if line.startswith(("+", "~")):
            raise ConfigError(f"{line!r} adds or deletes a key", where="command line", remedy="set existing keys only")
        hydras = key == "hydra" or key.startswith(("hydra.", "hydra/"))
        if hydras and not key.startswith(LAUNCHER_KEYS):
            raise UsageError(
                f"{key} is not for the command line",
                where="command line",
                remedy="of Hydra's own keys hydra/launcher=… and hydra.launcher.… may be given; run.dir names the "
                "directory of a multirun",
            )
        if override.is_sweep_override() and (hydras or key in unswept):
            raise UsageError(f"{key} takes one value for all jobs", where="command line", remedy="give a single value")
        (launcher if hydras else own).append(override)
    try:
        (jobs,) = BasicSweeper.split_arguments(own, None)
    except HydraException as error:
        raise ConfigError(
            f"cannot sweep like that: {error}", where="command line", remedy="list values: key=1,2,3, or range(1,4)"
        ) from error
    last = {override.get_key_element(): override for override in own}  # of a key that is given twice the last counts
    swept = [key for key, override in last.items() if override.is_sweep_override()]
    values = tuple({key: plain(line) for line in job if (key := line.partition("=")[0]) in swept} for job in jobs)
    lines = tuple(override.input_line or "" for override in launcher)
    return Grid(tuple(map(tuple, jobs)), tuple(swept), values, lines)


def plain(override: str) -> str:
    """The value of an override as it is meant, e.g. ``300,301`` of ``eval.seeds='300,301'``."""
    value = OverridesParser.create().parse_override(override).value()
    return value if isinstance(value, str) else override.partition("=")[2]


def _parse(overrides: list[str]) -> list[Override]:
    """Hydra's own parser; with the configuration tree, so that ``group=glob(*)`` finds its options."""
    saved = Singleton.get_state()
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            return OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    except OverrideParseException as error:
        raise ConfigError(
            f"cannot read the override {error.override!r}",
            where="command line",
            remedy="write key=value or key=value,value; quote values with special characters",
        ) from error
    finally:
        Singleton.set_state(saved)
