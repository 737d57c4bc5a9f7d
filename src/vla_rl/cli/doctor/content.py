"""Checks of what comes with the package: configuration tree, bundled bases, the robot's files, licences.

In: the installed files. Out: findings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from vla_rl import paths
from vla_rl.cli.doctor.findings import FAILURE, OK, WARNING, Finding
from vla_rl.cli.doctor.project import NAME, install_remedy, project, version

SUMS = paths.PACKAGE / "bases.sha256"  # as `sha256sum` writes it; scripts/base_sums.py makes it
DEFAULT_BASE = "tiny_start"
ROBOT = "so101-nexus"
RESTORE = "git checkout -- src/vla_rl/bases in a checkout, else install vla-rl again"


def configuration(_: float) -> Iterator[Finding]:
    """The configuration tree is there. An option that is missing in it is named by the command that asks for it."""
    yield Finding("configuration", OK, f"{paths.conf_dir()}")


def bases(_: float) -> Iterator[Finding]:
    """What a bundled policy is loaded from has the digests that it was shipped with."""
    listed: dict[str, dict[str, str]] = {}
    for line in SUMS.read_text().splitlines():
        digest, name = line.split("  ", 1)
        base, file = name.split("/", 2)[1:]
        listed.setdefault(base, {})[file] = digest
    for base, files in listed.items():
        folder = paths.bundled_base(base)
        if not folder.is_dir():
            if base == DEFAULT_BASE:
                yield Finding("bases", FAILURE, f"{base}, which policy=tiny loads, is not in {folder.parent}", RESTORE)
            else:
                yield Finding("bases", OK, f"{base} is not part of this installation")
            continue
        wrong = [name for name, digest in files.items() if _digest(folder / name) != digest]
        if wrong:
            what = f"{base} is damaged: {', '.join(wrong)} in {folder}"
            yield Finding("bases", FAILURE if base == DEFAULT_BASE else WARNING, what, RESTORE)
        else:
            yield Finding("bases", OK, f"{base} is intact, {len(files)} files")


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def robot(_: float) -> Iterator[Finding]:
    """The robot's model is in the package that brings it."""
    from vla_rl.sim.assets import robot_dir

    folder = robot_dir()
    meshes = set(re.findall(r'<mesh[^>]*\bfile="([^"]+)"', (folder / "so101.xml").read_text()))
    missing = sorted(name for name in meshes if not (folder / "assets" / name).is_file())
    if missing:
        what = f"{folder} lacks {', '.join(missing)}"
        yield Finding("robot", FAILURE, what, install_remedy(ROBOT))
    else:
        yield Finding("robot", OK, f"SO-101 of {ROBOT} {version(ROBOT)}, {len(meshes)} meshes")


def licences(_: float) -> Iterator[Finding]:
    """Under which terms this package, the package of the robot and the robot's model itself are here."""
    root = paths.repo_root()
    own = [root / "LICENSE"] if root else _licence_files(NAME)
    yield _licence(f"{NAME} {project().licence or ''}".strip(), own)
    about = metadata.metadata(ROBOT)
    declared = about["License-Expression"] or about["License"] or "no licence declared"
    yield _licence(f"{ROBOT} {version(ROBOT)}: {declared}", _licence_files(ROBOT))
    from vla_rl.sim.assets import robot_dir

    folder = robot_dir()
    yield _licence(f"the robot model {folder.name} in it", sorted(folder.glob("LICEN[CS]E*")))


def _licence_files(package: str) -> list[Path]:
    """The licence texts that a wheel carries for itself."""
    found = metadata.files(package) or ()
    return [Path(str(one.locate())) for one in found if ".dist-info" in str(one.parent) and "LICEN" in one.name.upper()]


def _licence(subject: str, files: Iterable[Path]) -> Finding:
    for path in files:
        if path.is_file():
            return Finding("licences", OK, f"{subject}: {_title(path.read_text(errors='replace'))} ({path})")
    remedy = "install it again from its source; pass nothing on before its terms are known"
    return Finding("licences", WARNING, f"{subject}: its licence text is not here", remedy)


def _title(text: str) -> str:
    """What a licence text calls itself: its first lines, up to the version or the first blank one."""
    lines = [line.strip().strip("#").strip() for line in text.splitlines()]
    first = next((at for at, line in enumerate(lines) if line), None)
    if first is None:
        return "an empty file"
    second = lines[first + 1] if first + 1 < len(lines) else ""
    return f"{lines[first]}, {second}" if second.lower().startswith("version") else lines[first]
