"""Checks of the installed packages: bounds, tested versions, extras, and whether they can be imported at all.

In: what the project says that it needs. Out: findings. Versions are read from metadata; imports happen in processes of
their own, torch's and MuJoCo's in `graphics`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl import paths
from vla_rl.cli.doctor.findings import FAILURE, OK, WARNING, Finding
from vla_rl.cli.doctor.imports import failures
from vla_rl.cli.doctor.project import LOCK, Project, install_remedy, project, repair, version

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What a run can do without, and what that costs; an offline bundle leaves these out.
SPARED = {
    "av": "films of episodes are animated WebP instead of MP4",
    "wandb": "logger=wandb is not available",
    "manifold3d": "the robot's meshes must come simplified",
    "trimesh": "the robot's meshes must come simplified",
}
# What each extra is for.
EXTRAS = {
    "dev": "make test, make lint and make type",
    "figures": "vla-rl report --figures",
    "lora": "surface=lora",
    "lerobot": "policy=lerobot and lerobot-eval, in an environment of its own",
    "sweep": "hydra/launcher=joblib and submitit",
    "ray": "pool=ray",
    "oracle": "the test that compares our loss with TRL's",
}
MODULES = {"hydra-core": "hydra", "pillow": "PIL", "pyyaml": "yaml"}  # where the module is called otherwise
# torch and mujoco have checks of their own, wandb is loaded on demand, so101-nexus is a source of files.
NOT_IMPORTED = {"torch", "mujoco", "wandb", "so101-nexus"}
SHOWN = 6  # packages that one line names


def bounds(_: float) -> Iterator[Finding]:
    """Every needed package is there, in a version that is allowed; and how far that is from what was tested."""
    known, wrong = project(), 0
    for one in known.needed:
        if (problem := _problem(one)) is not None:
            wrong += 1
            spared = SPARED.get(one.name.lower())
            status = WARNING if spared else FAILURE
            what = f"{problem}; {spared}" if spared else problem
            yield Finding("packages", status, what, install_remedy(shlex.quote(str(one)), again=False))
    if not wrong:
        yield Finding("packages", OK, f"all {len(known.needed)} are there, in versions that pyproject.toml allows")
    yield _tested(known)


def _problem(one: Requirement) -> str | None:
    found = version(one.name)
    if found is None:
        return f"{one.name} is not installed"
    if not one.specifier.contains(found, prereleases=True):
        return f"{one.name} {found} is installed, needed is {one.name}{one.specifier}"
    return None


def _tested(known: Project) -> Finding:
    if known.tested is None:
        return Finding("tested versions", OK, f"not known here: {LOCK} lies in a checkout")
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    own = {canonicalize_name(one.name) for one in known.needed}
    others = {}
    for name, tested in known.tested.items():
        found = version(name)
        if found is not None and not SpecifierSet(f"=={tested}").contains(found, prereleases=True):
            others[name] = f"{name} {found} (tested: {tested})"
    if not others:
        return Finding("tested versions", OK, f"every installed package that {LOCK} names has the tested version")
    named = sorted(others, key=lambda name: (name not in own, name))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    what = f"not what was tested: {', '.join(others[name] for name in named[:SHOWN])}{more}"
    root = paths.repo_root() or Path()
    return Finding("tested versions", WARNING, what, f"pip install -c {root / LOCK} -e {root} (or: make setup)")


def extras(_: float) -> Iterator[Finding]:
    """Which optional parts are installed; one that is there in a version that does not fit is a warning."""
    from packaging.utils import canonicalize_name

    for name, needed in project().extras.items():
        use = f" ({EXTRAS[name]})" if name in EXTRAS else ""
        missing = [one for one in needed if version(one.name) is None]
        unfit = [problem for one in needed if one not in missing and (problem := _problem(one))]
        quoted = " ".join(shlex.quote(str(one)) for one in needed if one in missing or _problem(one))
        if unfit:
            remedy = install_remedy(quoted, again=False)
            yield Finding("extras", WARNING, f"{name}{use}: {'; '.join(unfit)}", remedy)
        elif not missing:
            yield Finding("extras", OK, f"{name}{use}: installed")
        else:
            lacks = ", ".join(canonicalize_name(one.name) for one in missing)
            yield Finding("extras", OK, f"{name}{use}: not installed, lacks {lacks}; pip install {quoted} adds it")


def imports(patience_s: float) -> Iterator[Finding]:
    """Packages that are installed can be imported, too."""
    there = {
        MODULES.get(one.name.lower(), one.name.lower().replace("-", "_")): one.name.lower()
        for one in project().needed
        if one.name.lower() not in NOT_IMPORTED and version(one.name) is not None
    }
    broken = {module: reason for module, reason in failures(list(there), patience_s).items() if reason is not None}
    for module, reason in broken.items():
        package = there[module]
        status = WARNING if package in SPARED else FAILURE
        yield Finding("imports", status, f"{module} cannot be imported: {reason}", repair(package))
    if not broken:
        yield Finding("imports", OK, f"{len(there)} packages can be imported")
