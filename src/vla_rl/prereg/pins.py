"""Pins: what a registration was frozen with, and whether this machine has the same.

In: a configuration and this installation. Out: `Pins`, or what differs from them, each with its remedy. Trees are
hashed over the bytes on the disk, as git would name them, so that neither an edited file that git is told to ignore nor
one that was never added can hide; a clone on another machine has the same. No weight is loaded, nothing is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl import paths
from vla_rl.errors import ConfigError, UsageError
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.git import Git, blob_id, is_bytecode, tree_id
from vla_rl.prereg.identity import package_versions, variables
from vla_rl.prereg.imports import foreign_bytecode, links, misplaced, shadows, start_up_hooks
from vla_rl.prereg.sections import CodePins, EnvironmentPins, FilePins, Pins

LOCK = "constraints.txt"
ROBOT = "so101_nexus"
EXACT = ("torch", "mujoco", "transformers", "numpy", "tokenizers", "so101-nexus", "vla-rl")
_HEX40 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Place:
    """The installation that a registration is about.

    Attributes:
        package: directory of the imported package.
        conf: the Hydra configuration tree in use.
        root: the checkout they belong to; None for an installed wheel.
    """

    package: Path
    conf: Path
    root: Path | None

    @classmethod
    def here(cls) -> Place:
        return cls(paths.PACKAGE, paths.conf_dir(), paths.repo_root())


@dataclass(frozen=True)
class Difference:
    """A pin that does not hold here.

    Attributes:
        what: in words.
        where: path of the pin.
        remedy: what to do.
    """

    what: str
    where: str
    remedy: str


def take(
    config: Mapping[str, Any], place: Place, command: list[str], draft: bytes | None, *, absent: bool = False
) -> Pins:
    """Everything as it is now.

    Args:
        absent: a checkpoint or codec that is not there is pinned by its name alone; nothing launches on such a pin.

    Raises:
        ConfigError: a checkpoint that is not there, or a hub id without a full commit.
    """
    git = Git.around(place.root) if place.root else None
    lock = place.root / LOCK if place.root else None
    return Pins(
        code=CodePins(
            package_tree=tree_id(place.package),
            conf_tree=tree_id(place.conf),
            lock_sha256=file_digest(lock.read_bytes()) if lock and lock.is_file() else None,
            base_commit=git.head() if git else None,
            plugins={name: _plugin_tree(name) for name in config.get("plugins", [])},
        ),
        checkpoint=_checkpoint(config.get("policy", {}), "checkpoint", "revision", absent),
        codec=_checkpoint(config.get("policy", {}), "fast_tokenizer", "fast_revision", absent),
        robot=_robot(),
        packages=package_versions(),
        environment=EnvironmentPins(variables(), start_up_hooks()),
        command=command,
        draft_sha256=file_digest(draft) if draft is not None else None,
    )


def differences(pins: Pins, config: Mapping[str, Any], place: Place) -> list[Difference]:
    """What is not as it was pinned; empty if a run of `config` here is the registered one."""
    return [*unlike(pins, place), *unpinned(pins, config)]


def unpinned(pins: Pins, config: Mapping[str, Any]) -> list[Difference]:
    """What a configuration uses and these are not the pins of; no file is read."""
    policy, found = config.get("policy", {}), []
    for name in config.get("plugins", []):
        if name not in pins.code.plugins:
            what = f"the plugin {name} is not pinned"
            found.append(Difference(what, f"pins.code.plugins.{name}", "amend with --repin"))
    remedy = "another policy needs a registration of its own, or amend --repin"
    for key, pinned, name, revision in (
        ("checkpoint", pins.checkpoint, policy.get("checkpoint"), policy.get("revision")),
        ("codec", pins.codec, policy.get("fast_tokenizer"), policy.get("fast_revision")),
    ):
        if name != (pinned.name if pinned else None):
            what = f"the run uses {name}, and {pinned.name if pinned else 'none'} is pinned"
            found.append(Difference(what, f"pins.{key}.name", remedy))
        elif pinned and revision != pinned.revision:
            what = f"the run uses {name} at {revision}, and {pinned.revision or 'no commit of it'} is pinned"
            found.append(Difference(what, f"pins.{key}.revision", remedy))
    return found


def unlike(pins: Pins, place: Place) -> list[Difference]:
    """What is not here as it was pinned, whatever is to be run: every pinned file is read."""
    found: list[Difference] = []
    clean = "undo the change (git status, git ls-files -v and git status --ignored show where), or amend with --repin"
    for name, directory in (("package_tree", place.package), ("conf_tree", place.conf)):
        if tree_id(directory) != getattr(pins.code, name):
            files = changed_files(place, directory, getattr(pins.code, name))
            found.append(
                Difference(f"{directory.name} is not what was frozen{files}", f"pins.code.{name}: {directory}", clean)
            )
    found += _plugin_differences(pins.code.plugins)
    lock = place.root / LOCK if place.root else None
    now = file_digest(lock.read_bytes()) if lock and lock.is_file() else None
    if pins.code.lock_sha256 not in (None, now):
        found.append(Difference(f"{LOCK} is not what was frozen", f"pins.code.lock_sha256: {lock}", clean))
    found += [*_file_differences("checkpoint", pins.checkpoint), *_file_differences("codec", pins.codec)]
    robot = _robot()
    if robot.files != pins.robot.files:
        what = f"the robot model is not what was frozen ({ROBOT} {robot.revision}, frozen with {pins.robot.revision})"
        found.append(Difference(what, "pins.robot", f"pip install {ROBOT.replace('_', '-')}=={pins.robot.revision}"))
    versions = package_versions()
    for name in EXACT:
        if versions.get(name) != pins.packages.get(name):
            what = f"{name} {versions.get(name)} is installed, frozen with {pins.packages.get(name)}"
            remedy = f"pip install {name}=={pins.packages.get(name)}, or amend --repin"
            found.append(Difference(what, f"pins.packages.{name}", remedy))
    return [*found, *_import_differences(place, pins.code.plugins), *_environment_differences(pins.environment)]


def changed_files(place: Place, directory: Path, pinned: str) -> str:
    """``: a.py, b.py`` if git still has the pinned tree, else nothing."""
    git = Git.around(place.root) if place.root else None
    try:
        known = git.blobs(".", pinned) if git else {}
    except UsageError:  # nobody has it
        return ""
    here = {
        path.relative_to(directory).as_posix(): blob_id(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and not is_bytecode(path)
    }
    changed = sorted(name for name in {*known, *here} if known.get(name) != here.get(name)) if known else []
    shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return f": {shown}" if shown else ""


def _import_differences(place: Place, plugins: Iterable[str]) -> list[Difference]:
    """What would run instead of the sources that are hashed."""
    own = {"package_tree": place.package, "conf_tree": place.conf}
    own |= {f"plugins.{name}": directory for name in plugins if (directory := _package_directory(name))}
    robot = _package_directory(ROBOT)
    found = []
    for key, directory in own.items():
        for link in links(directory):
            what = f"{link} is a link: what it leads to is not pinned"
            found.append(Difference(what, f"pins.code.{key}", "put the file itself there"))
    for key, directory in {**own, "robot": robot}.items():
        for cached in foreign_bytecode(directory) if directory else ():
            what = f"{cached} is not compiled from its source, and Python would run it instead"
            found.append(Difference(what, f"pins.code.{key}", "remove it; Python writes it anew"))
    for module, directory in shadows([place.package.name, paths.PACKAGE.name, *plugins]):
        what = f"{directory} brings a {module} of its own, in place of the installed one"
        found.append(Difference(what, f"pins.packages.{module}", "unset PYTHONPATH, or work in another directory"))
    for module, origin, home in misplaced(name for name in EXACT if name != "vla-rl"):
        what = f"{module} would be imported from {origin}, its distribution lies in {home}"
        found.append(Difference(what, f"pins.packages.{module}", "remove the other copy"))
    return found


def _environment_differences(pinned: EnvironmentPins) -> list[Difference]:
    found = []
    for name, content in start_up_hooks().items():
        if pinned.hooks.get(name) != content:
            found.append(
                Difference(
                    f"{name} runs code in every Python program, and it is not what was frozen",
                    f"pins.environment.hooks.{name}",
                    "remove it, or use an environment without it",
                )
            )
    if os.environ.get("LD_PRELOAD") != pinned.variables.get("LD_PRELOAD"):
        what = f"LD_PRELOAD is {os.environ.get('LD_PRELOAD')!r}, frozen with {pinned.variables.get('LD_PRELOAD')!r}"
        found.append(Difference(what, "pins.environment.variables.LD_PRELOAD", "set it as it was"))
    if os.environ.get("HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE"):
        found.append(
            Difference(
                "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE is set",
                "pins.environment.variables",
                "unset it; it switches off a safety check",
            )
        )
    return found


def named_only(pinned: FilePins | None) -> bool:
    """Whether it was not there when it was pinned, so that nothing is known of it but its name."""
    return pinned is not None and not pinned.files and pinned.revision is None


def _checkpoint(policy: Mapping[str, Any], name_key: str, revision_key: str, absent: bool) -> FilePins | None:
    name, revision = policy.get(name_key), policy.get(revision_key)
    if name is None:
        return None
    directory = _checkpoint_directory(name)
    if directory is None:
        if revision is None and absent:
            return FilePins(name, None, {})
        if not (isinstance(revision, str) and _HEX40.fullmatch(revision)):
            raise ConfigError(
                f"{name!r} is neither a directory nor a hub id pinned to a commit",
                where=f"policy.{name_key}",
                remedy=f"name a directory, or give policy.{revision_key} as 40 hex digits; --absent freezes without it",
            )
        return FilePins(name, revision, {})
    return FilePins(name, revision, file_hashes(directory))


def _file_differences(key: str, pinned: FilePins | None) -> list[Difference]:
    directory = _checkpoint_directory(pinned.name) if pinned else None
    if pinned is not None and named_only(pinned):
        where = "is not there" if directory is None else "is there, but its files are not pinned"
        remedy = "vla-rl prereg amend --repin" if directory else "put it there, then vla-rl prereg amend --repin"
        return [Difference(f"{pinned.name} {where}: it was absent when this was frozen", f"pins.{key}.files", remedy)]
    if pinned is None or not pinned.files:  # a hub id: the loader is given the commit
        return []
    if directory is None:
        return [Difference(f"{pinned.name} is not there", f"pins.{key}", "put the pinned files in its place")]
    here = file_hashes(directory)
    changed = sorted(name for name in {*here, *pinned.files} if here.get(name) != pinned.files.get(name))
    if not changed:
        return []
    return [
        Difference(
            f"{len(changed)} files of {pinned.name} are not what was frozen, first {changed[0]}",
            f"pins.{key}.files.{changed[0]}",
            "restore the pinned files; another policy needs a registration of its own",
        )
    ]


def _checkpoint_directory(name: str) -> Path | None:
    directory = paths.bundled_base(name.removeprefix(paths.BUNDLED)) if name.startswith(paths.BUNDLED) else Path(name)
    return directory if any(path.is_file() for path in directory.rglob("*")) else None  # an empty one is no policy


def file_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by relative name."""
    return dict(_hashes(directory))


def _hashes(directory: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                yield path.relative_to(directory).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _robot() -> FilePins:
    directory = _package_directory(ROBOT)
    version = package_versions().get("so101-nexus")
    return FilePins(ROBOT, version, {"tree": tree_id(directory)} if directory else {})


def _plugin_tree(name: str) -> str:
    directory = _package_directory(name)
    if directory is None:
        raise ConfigError(f"the plugin package {name} is not installed", where="plugins", remedy="install it")
    return tree_id(directory)


def _plugin_differences(pinned: Mapping[str, str]) -> list[Difference]:
    found = []
    for name, tree in pinned.items():
        directory = _package_directory(name)
        if directory is None or tree_id(directory) != tree:
            what = f"the plugin {name} is not what was frozen"
            found.append(Difference(what, f"pins.code.plugins.{name}", "install the version that was frozen"))
    return found
