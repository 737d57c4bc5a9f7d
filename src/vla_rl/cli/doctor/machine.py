"""Checks of the machine itself: interpreter, cores, memory, disk, the directories that are written, git.

In: the working directory and the kernel's own figures. Out: findings.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vla_rl import paths
from vla_rl.cli.doctor.children import ask
from vla_rl.cli.doctor.findings import FAILURE, OK, WARNING, Finding
from vla_rl.cli.doctor.project import install_remedy, project, version

GIB = 2**30
OUTPUTS = Path("outputs")
CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # the kernel writes "max", older ones a number above any machine


def python(_: float) -> Iterator[Finding]:
    """The interpreter is new enough."""
    from packaging.specifiers import SpecifierSet

    running, needed = platform.python_version(), project().python
    if SpecifierSet(needed).contains(running, prereleases=True):
        yield Finding("python", OK, f"{running} at {sys.executable} (needed: {needed})")
    else:
        remedy = "make PYTHON=/path/to/a/newer/python setup"
        yield Finding("python", FAILURE, f"{running} at {sys.executable}, needed is {needed}", remedy)


CORES_WANTED = 2  # the quickstart has two workers beside the policy


def cores(_: float) -> Iterator[Finding]:
    """How many cores this process may use: of the machine, its affinity and its container."""
    has = os.cpu_count() or 1
    may: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else has
    limit = _text(CGROUP / "cpu.max").split()
    if len(limit) == 2 and all(map(str.isdigit, limit)):
        may = min(may, int(limit[0]) / int(limit[1]))
    what = f"{may:g} of {has} cores can be used"
    if may < CORES_WANTED:
        yield Finding("cores", WARNING, what, f"runs take longer; {CORES_WANTED} are what the quickstart is made for")
    else:
        yield Finding("cores", OK, what)


# The quickstart takes 1.3 GiB at its peak, workers included (measured on a CPU).
MEMORY_NEEDED_GIB, MEMORY_WANTED_GIB = 1.5, 2.5


def memory(_: float) -> Iterator[Finding]:
    """Memory that can be had now, by the kernel's estimate and the container's limit."""
    total, free = _memory()
    what = f"{free / GIB:.1f} of {total / GIB:.1f} GiB can be had"
    remedy = "end other programs; pool.workers=1 or pool=serial takes less"
    if free < MEMORY_NEEDED_GIB * GIB:
        what += f"; the quickstart needs {MEMORY_NEEDED_GIB:g}"
        yield Finding("memory", FAILURE, what, remedy)
    elif free < MEMORY_WANTED_GIB * GIB:
        yield Finding("memory", WARNING, f"{what}; that is just enough for the quickstart", remedy)
    else:
        yield Finding("memory", OK, what)


def _memory() -> tuple[int, int]:
    """All and free bytes."""
    lines = (line.split() for line in _text(Path("/proc/meminfo")).splitlines())
    figures = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    if not {"MemTotal:", "MemAvailable:"} <= figures.keys():
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages, pages
    total, free = figures["MemTotal:"], figures["MemAvailable:"]
    limit, used = _text(CGROUP / "memory.max").strip(), _text(CGROUP / "memory.current").strip()
    if limit.isdigit() and int(limit) < min(total, UNLIMITED):
        # Pages that hold files count as used, and are given back when they are wanted.
        lines = (line.split() for line in _text(CGROUP / "memory.stat").splitlines())
        cached = sum(int(words[1]) for words in lines if words[0] in ("inactive_file", "active_file"))
        total = int(limit)
        free = min(free, total - (int(used) if used.isdigit() else 0) + cached)
    return total, free


DISK_NEEDED_GIB, DISK_WANTED_GIB = 0.5, 5.0


def outputs(_: float) -> Iterator[Finding]:
    """Results can be written below the working directory, and there is room for them."""
    place = OUTPUTS if os.path.lexists(OUTPUTS) else Path()
    where = OUTPUTS.absolute()
    if (reason := _unwritable(place)) is not None:
        remedy = "work in another directory, or name one that can be written with run.dir=…"
        yield Finding("outputs", FAILURE, f"{where} cannot be written: {reason}", remedy)
        return
    yield Finding("outputs", OK, f"{where} can be written")
    free = shutil.disk_usage(place).free
    what, remedy = f"{free / GIB:.1f} GiB free for {where}", "make room, or name another disk with run.dir=…"
    if free < DISK_NEEDED_GIB * GIB:
        yield Finding("disk", FAILURE, what, remedy)
    elif free < DISK_WANTED_GIB * GIB:
        yield Finding("disk", WARNING, f"{what}: enough for the quickstart, soon full with longer runs", remedy)
    else:
        yield Finding("disk", OK, what)


def mesh_cache(_: float) -> Iterator[Finding]:
    """The robot's simplified meshes are there or can be kept; otherwise every process makes them anew."""
    if paths.packaged_meshes().is_dir():
        yield Finding("mesh cache", OK, f"the simplified meshes came with the package: {paths.packaged_meshes()}")
        return
    cache = paths.cache_dir()
    absent = [name for name in ("manifold3d", "trimesh") if version(name) is None]
    if absent and not any(cache.glob("so101-visual-*.npz")):
        what = f"the robot's meshes are neither here simplified nor can be: {' and '.join(absent)} missing"
        yield Finding("mesh cache", FAILURE, what, install_remedy(*absent, again=False))
        return
    existing = next(path for path in (cache, *cache.absolute().parents) if os.path.lexists(path))
    if (reason := _unwritable(existing)) is None:
        yield Finding("mesh cache", OK, f"{cache} can be written")
        return
    what = f"{cache} cannot be written ({reason}): every process simplifies the robot's meshes anew, two seconds each"
    yield Finding("mesh cache", WARNING, what, "set VLA_RL_CACHE to a directory that can be written")


def _unwritable(directory: Path) -> str | None:
    """Why no file can be made in a directory; None if one was made, and removed again."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".vla-rl-doctor-"):
            return None
    except OSError as error:
        return error.strerror or str(error)


def git(patience_s: float) -> Iterator[Finding]:
    """git is what anchors a registration: it is installed, knows a checkout with a commit, and knows who commits."""
    place = next(path for path in (paths.experiments_dir(), *paths.experiments_dir().parents) if path.is_dir())
    if shutil.which("git") is None:
        yield Finding("git", WARNING, "git is not installed; registrations need it", "apt-get install -y git")
        return
    facts = {}
    for name, words in (
        ("top", ("rev-parse", "--show-toplevel")),
        ("head", ("rev-parse", "--verify", "--quiet", "HEAD")),
        ("name", ("config", "user.name")),
        ("email", ("config", "user.email")),
    ):
        answer = ask(["git", "--no-optional-locks", "-C", str(place), *words], patience_s / 5)
        facts[name] = answer.out.strip() if answer.code == 0 else None
        if name == "top" and facts["top"] is None:
            dubious = "dubious ownership" in answer.err
            remedy = f"git config --global --add safe.directory {place}" if dubious else f"git init {place}"
            what = f"no usable checkout around {place} ({answer.how(patience_s / 5)}); registrations need one"
            yield Finding("git", WARNING, what, remedy)
            return
    if facts["head"] is None:
        what, remedy = f"{facts['top']} has no commit yet; registrations need one", "git add -A && git commit"
        yield Finding("git", WARNING, what, remedy)
    elif not (facts["name"] and facts["email"]):
        remedy = "git config --global user.name NAME && git config --global user.email ADDRESS"
        yield Finding("git", WARNING, "git does not know who commits; freezing a registration ends in a commit", remedy)
    else:
        yield Finding("git", OK, f"{facts['top']} at {facts['head'][:12]}")


def _text(path: Path) -> str:
    """The content of a file of the kernel, empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
