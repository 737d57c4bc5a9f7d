"""What this installation says that it needs: its Python, its packages with their bounds, its extras, tested versions.

In: `pyproject.toml` and `constraints.txt` of the checkout, or the metadata of an installed wheel, which carries no
tested versions. Out: `Project`. Nothing is imported that is checked later, but `packaging`, which reads requirements.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from vla_rl import paths

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "vla-rl"
LOCK = "constraints.txt"


@dataclass(frozen=True)
class Project:
    """What is needed.

    Attributes:
        python: bounds of the interpreter, e.g. ``>=3.12``.
        needed: packages that every installation has.
        extras: packages of each extra.
        tested: version by package (normalised name); None where nobody knows.
        licence: of this package.
    """

    python: str
    needed: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]]
    tested: Mapping[str, str] | None
    licence: str | None


def project() -> Project:
    """Of the checkout, because what pip has noted of an editable installation may be older; else of the wheel.

    Raises:
        PackageNotFoundError: neither a checkout nor an installed package.
    """
    from packaging.requirements import Requirement

    root = paths.repo_root()
    if root is None:
        return _installed()
    table = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return Project(
        table["requires-python"],
        _applying(map(Requirement, table["dependencies"])),
        {name: _applying(map(Requirement, lines)) for name, lines in table.get("optional-dependencies", {}).items()},
        _tested((root / LOCK).read_text()) if (root / LOCK).is_file() else None,
        table.get("license"),
    )


def _installed() -> Project:
    from packaging.requirements import Requirement

    about = metadata.metadata(NAME)
    lines = metadata.requires(NAME) or ()
    needed = _applying(map(Requirement, lines))
    extras = {
        extra: tuple(one for one in _applying(map(Requirement, lines), extra) if one not in needed)
        for extra in about.get_all("Provides-Extra") or ()
    }
    return Project(about["Requires-Python"] or "", needed, extras, None, about["License-Expression"])


def _applying(requirements: Iterable[Requirement], extra: str = "") -> tuple[Requirement, ...]:
    """Those that are meant for this interpreter and system, without the condition that said so."""
    kept = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": extra})]
    for one in kept:
        one.marker = None
    return tuple(kept)


def _tested(text: str) -> dict[str, str]:
    from packaging.utils import canonicalize_name

    lines = (line.partition("#")[0].strip().partition("==") for line in text.splitlines())
    return {canonicalize_name(name): version for name, equals, version in lines if equals}


def version(package: str) -> str | None:
    """The installed version, None if it is not installed or its metadata are damaged."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError):
        return None


def repair(package: str) -> str:
    """What to do about a package that is installed and cannot be imported."""
    from vla_rl.prereg.imports import misplaced

    for _, origin, home in misplaced([package]):
        return f"remove {origin} (or unset PYTHONPATH): it hides the {package} in {home}"
    return install_remedy(package)


def install_remedy(*packages: str, again: bool = True) -> str:
    """How to get packages here, under the tested versions where these are known."""
    root = paths.repo_root()
    under = f" -c {root / LOCK}" if root and (root / LOCK).is_file() else ""
    forced = " --force-reinstall --no-deps" if again else ""
    return f"pip install{forced}{under} {' '.join(packages)}"
