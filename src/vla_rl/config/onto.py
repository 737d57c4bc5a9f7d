"""Overrides laid onto a stored configuration: the rest of it stays as it was when the run began.

In: a resolved tree, override strings, the parts that they may touch. Out: a `ConfigReader`. `compose` starts from
`conf/`, whose files may have changed since; here only an option that is named is read from there.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vla_rl.config.compose import compose
from vla_rl.config.keys import COMPONENTS, check_values
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import ROOTS
from vla_rl.errors import ConfigError, UsageError


def compose_onto(
    primary: str, tree: dict[str, Any], overrides: Sequence[str], parts: Sequence[str], *, fixed: Sequence[str] = ()
) -> ConfigReader:
    """A stored tree with overrides such as ``reward=v2`` or ``geometry.advantage_clip=2``.

    Args:
        primary: primary configuration that the tree was composed from.
        tree: resolved; it is not changed.
        overrides: an option of a part, or one of its keys.
        parts: names at the top of the tree that may be changed, e.g. ``reward``.
        fixed: dotted keys that may not be changed, and that an option leaves as they were.

    Raises:
        UsageError: an override of something else.
        ConfigError: an unknown option or key, or a value that is none.
    """
    new = copy.deepcopy(tree)
    for override in sorted(overrides, key=lambda text: "." in text.partition("=")[0]):  # options before keys
        path, _, text = override.partition("=")
        part, _, key = path.partition(".")
        if part not in parts or path in fixed or not text:
            raise UsageError(
                f"{override!r} cannot be laid onto a stored run",
                where="command line",
                remedy=f"change {' or '.join(parts)}, but none of {', '.join(fixed)}" if fixed else None,
            )
        if not key:
            names = [name.partition(".")[2] for name in fixed if name.startswith(f"{part}.")]
            kept = {name: tree[part][name] for name in names}
            new[part] = {**compose(primary, [override]).tree[part], **kept}
        elif key not in new[part]:
            raise ConfigError(
                f"there is no key {path!r}", where="command line", remedy=f"known: {', '.join(new[part])}"
            )
        else:
            new[part][key] = _value(override)
    _check_types(primary, new)
    check_values(primary, new)
    return ConfigReader(new, tuple(overrides))


def _value(override: str) -> Any:
    try:
        return OverridesParser.create().parse_override(override).value()
    except HydraException:
        raise ConfigError(
            f"cannot read the override {override!r}", where="command line", remedy="write key=value"
        ) from None


def _check_types(primary: str, tree: dict[str, Any]) -> None:
    """Refuse a value that its key cannot hold; also those of components with a schema of their own."""
    typed = {field.name for field in dataclasses.fields(ROOTS[primary])}
    try:
        OmegaConf.merge(OmegaConf.structured(ROOTS[primary]), {k: v for k, v in tree.items() if k in typed})
        for node in (node for node in tree.values() if isinstance(node, dict) and node.get("_target_") in COMPONENTS):
            OmegaConf.merge(OmegaConf.structured(COMPONENTS[node["_target_"]]), node)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(str(error).splitlines()[0], where="command line") from None
