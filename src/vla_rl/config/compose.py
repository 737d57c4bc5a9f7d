"""Compose a configuration with Hydra and hand it on as plain Python types.

In: the name of a primary configuration under `conf/` and override strings. Out: a `ConfigReader`. Hydra and OmegaConf
errors become one `ConfigError` with key, file and a nearest match; no OmegaConf type leaves this module.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vla_rl import paths
from vla_rl.config.keys import check_values
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import ROOTS, SCHEMAS
from vla_rl.errors import ConfigError


def compose(primary: str, overrides: Sequence[str] = (), *, allow_missing: bool = False) -> ConfigReader:
    """Compose `conf/<primary>.yaml` with Hydra overrides, resolve it and check it against its schema.

    Args:
        primary: ``config`` (train), ``eval``, ``probe``, ``parity``, ``demos`` or ``sft``.
        allow_missing: leave mandatory keys without a value as they are (to list them).
        overrides: Hydra override strings such as ``geometry.seeds=4`` or ``surface=patch_only``.

    Raises:
        ConfigError: unknown key, option or value; a value out of range; a mandatory key without a value; `+`, `++`
            or `~` overrides.
    """
    for override in overrides:
        if override.startswith(("+", "~")):
            raise ConfigError(
                f"{override!r} adds or deletes a key",
                where="command line",
                remedy="set existing keys only; a new component comes with its own YAML file",
            )
    saved = Singleton.get_state()
    try:
        GlobalHydra.instance().clear()
        _register()
        with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
            given = [*_search_plugins(overrides), *(quote_seeds(override) for override in overrides)]
            node = hydra_compose(config_name=primary, overrides=given)
        tree = _to_plain(node, allow_missing)
        # A fresh merge into the schema refuses what an option file slipped past Hydra's struct flag.
        OmegaConf.merge(OmegaConf.structured(ROOTS[primary]), tree)
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # `optim=null` is a ValueError in Hydra
        raise _translate(error, primary, overrides) from error
    finally:
        Singleton.set_state(saved)
    check_values(primary, tree)
    return ConfigReader(tree, tuple(overrides))


def options(group: str) -> list[str]:
    """The options of a configuration group, e.g. ``["processes", "serial"]``."""
    return sorted(p.stem for p in (paths.conf_dir() / group).glob("*.yaml"))


def _search_plugins(overrides: Sequence[str]) -> list[str]:
    """Makes options found that packages under ``plugins=[...]`` bring in a `conf/` of their own; none is imported."""
    text = next((override.partition("=")[2] for override in overrides if override.startswith("plugins=")), "[]")
    found = [importlib.util.find_spec(name) for name in re.findall(r"\w+", text)]
    places = [Path(place) / "conf" for spec in found if spec for place in spec.submodule_search_locations or ()]
    listed = ",".join(f"'file://{place}'" for place in places if place.is_dir())
    return [f"hydra.searchpath=[{listed}]"] if listed else []


def quote_seeds(override: str) -> str:
    """``eval.seeds=300,305-307`` with quotes around its value: Hydra takes a bare comma for a sweep."""
    match = re.fullmatch(r"([\w.]*\bseeds)=(\d[\d,-]*)", override)
    return f"{match[1]}='{match[2]}'" if match and "," in match[2] else override


def _register() -> None:
    store = ConfigStore.instance()
    for name, schema in ROOTS.items():
        store.store(name=f"schema_{name}", node=schema)
    for (group, name), schema in SCHEMAS.items():
        store.store(group=group, name=name, node=schema)


def _to_plain(node: Any, allow_missing: bool) -> dict[str, Any]:
    missing = sorted(OmegaConf.missing_keys(node))
    if missing and not allow_missing:
        raise ConfigError(
            f"no value for {', '.join(missing)}",
            where="composed configuration",
            remedy=f"give one, e.g. {missing[0]}=…",
        )
    plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=not allow_missing, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _translate(error: Exception, primary: str, overrides: Sequence[str]) -> ConfigError:
    composed = isinstance(error, ConfigCompositionException) and isinstance(error.__cause__, Exception)
    cause = error.__cause__ if composed else error
    groups = sorted(p.name for p in paths.conf_dir().iterdir() if p.is_dir())
    if isinstance(cause, ValueError) and "Config group override must be" in str(cause):
        group = next((o.split("=")[0] for o in overrides if o.split("=")[0] in groups), "?")
        return ConfigError(
            f"the group {group} needs one of its options", where=group, remedy=f"options: {', '.join(options(group))}"
        )
    text = " ".join(line.strip() for line in str(cause).splitlines() if line.strip())
    if "is not a subclass of" in text and (nested := _nested_group(overrides)):
        return ConfigError(
            f"{nested.replace('/', '.')} is a group of keys, not a key",
            where=nested.replace("/", "."),
            remedy=f"choose an option with {nested}=…: {', '.join(options(nested))}",
        )
    if isinstance(cause, MissingConfigException) or "Could not find" in text:
        return _unknown_option(text)
    if "To sweep over it, add --multirun" in str(cause):
        return ConfigError(
            f"several values for one key: {next((o for o in overrides if o in text), text)}",
            where="command line",
            remedy="a run for each of them: vla-rl train -m …; a list as one value: key=[a,b]",
        )
    if isinstance(cause, OverrideParseException):
        return ConfigError(
            f"cannot read the override {cause.override!r}",
            where="command line",
            remedy="write key=value; quote values with special characters",
        )
    if match := re.search(r"Could not override '([^']+)'", f"{error} {text}"):
        return _unknown_key(match.group(1), primary)
    if match := re.search(r"Key '([^']+)' (?:not in|is not in struct)", text):
        full = re.search(r"full_key: (\S+)", text)
        return _unknown_key(full.group(1) if full else match.group(1), primary)
    full = re.search(r"full_key: (\S+)", text)
    where = full.group(1) if full else next((o for o in overrides if o.split("=")[0] in text), f"conf/{primary}.yaml")
    what = re.split(r"\s+full_key:|\s+object_type=|\s+reference_type=", text)[0]
    command = "train" if primary == "config" else primary
    return ConfigError(what, where=where, remedy=f"see the key's type and help with `vla-rl {command} --help-keys`")


def _nested_group(overrides: Sequence[str]) -> str | None:
    """The first override whose dotted key is really a nested group, e.g. ``sim.look=lens`` -> ``sim/look``."""
    paths_ = [override.partition("=")[0].replace(".", "/") for override in overrides]
    return next((path for path in paths_ if "/" in path and (paths.conf_dir() / path).is_dir()), None)


def _unknown_option(text: str) -> ConfigError:
    match = re.search(r"Could not find '([^']+)'", text)
    path = match.group(1) if match else text
    group, _, option = path.rpartition("/")
    known = options(group) if group else []
    if known:
        close = get_close_matches(option, known, n=1)
        hint = f"did you mean {group}={close[0]}? " if close else ""
        return ConfigError(
            f"the group {group} has no option {option!r}",
            where=f"{group}={option}",
            remedy=f"{hint}options: {', '.join(known)}",
        )
    groups = sorted(p.name for p in paths.conf_dir().iterdir() if p.is_dir())
    return ConfigError(
        f"there is no configuration group or file {path!r}", where="command line", remedy=f"groups: {', '.join(groups)}"
    )


def _unknown_key(key: str, primary: str) -> ConfigError:
    known = _known_keys(primary)
    group = key.split(".")[0]
    if key in known and (paths.conf_dir() / group).is_dir():
        return ConfigError(
            f"the chosen option of {group} has no key {key!r}",
            where="command line",
            remedy=f"leave it away, or choose the option of {group} that has it: {', '.join(options(group))}",
        )
    sections = list(dict.fromkeys(k.split(".")[0] for k in known))
    close = get_close_matches(key, known if "." in key else sections, n=1, cutoff=0.5)
    if not close:
        close = [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    inside = [k for k in known if k.startswith(key.split(".")[0] + ".")]
    remedy = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(inside or sections)}"
    return ConfigError(f"there is no key {key!r}", where=f"conf/{primary}.yaml and its groups", remedy=remedy)


def _known_keys(primary: str) -> list[str]:
    def walk(node: Any, prefix: str = "") -> list[str]:
        keys: list[str] = []
        for name in node:
            path = f"{prefix}{name}"
            if OmegaConf.is_missing(node, name):
                keys.append(path)
            elif OmegaConf.is_dict(node._get_node(name)) and node[name] is not None:
                keys += walk(node[name], f"{path}.")
            elif name != "_target_":
                keys.append(path)
        return keys

    saved = Singleton.get_state()
    try:
        GlobalHydra.instance().clear()
        _register()
        with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
            return walk(hydra_compose(config_name=primary))
    finally:
        Singleton.set_state(saved)
