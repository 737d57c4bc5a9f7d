"""Whether what Python runs is what was hashed: start-up hooks, bytecode in place of sources, links, shadows.

In: this interpreter. Out: facts about files. A tree hash says what the sources are; here is what could be run instead
of them without changing any of them. Left out: a library that was edited where it is installed (its version is pinned,
its content is not), and whoever can change the interpreter.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import pkgutil
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from vla_rl.prereg.canonical import file_digest

# Start-up hooks that installers put there themselves.
_USUAL_HOOKS = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, 'local'\) == 'local'; "
    r"enabled and __import__\('_distutils_hack'\)\.add_shim\(\);|import _virtualenv"
)


def site_directories() -> list[Path]:
    """Where libraries are installed."""
    known = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    return [path for path in map(Path, sorted(filter(None, known))) if path.is_dir()]


def start_up_hooks() -> dict[str, str]:
    """Files that the interpreter runs before any program, by name, with their SHA-256: `.pth` files with code in them
    that no installer is known to write, and `sitecustomize` or `usercustomize`."""
    hooks: dict[str, str] = {}
    for directory in site_directories():
        for file in sorted(directory.glob("*.pth")):
            text = file.read_bytes()
            lines = [line.strip() for line in text.decode("utf-8-sig", errors="replace").splitlines()]
            code = [line for line in lines if line.startswith(("import ", "import\t"))]
            if any(not _USUAL_HOOKS.fullmatch(line) for line in code):
                hooks[file.name] = file_digest(text)
    for name in ("sitecustomize", "usercustomize"):
        found = PathFinder.find_spec(name)  # not sys.modules: such a file can take itself out of it
        loaded = getattr(sys.modules.get(name), "__file__", None)
        for file in {found.origin if found else None, loaded} - {None}:
            if Path(str(file)).is_file():
                hooks[f"{name}.py"] = file_digest(Path(str(file)).read_bytes())
    return hooks


def links(directory: Path) -> list[Path]:
    """Symbolic links below a directory: a tree hash knows where they lead, and not what is there."""
    return sorted(
        Path(root) / name
        for root, folders, files in os.walk(directory)
        for name in (*folders, *files)
        if (Path(root) / name).is_symlink()
    )


def foreign_bytecode(directory: Path) -> list[Path]:
    """Compiled files below a directory that this interpreter would run in place of a source that they are not of."""
    pairs = ((source, Path(importlib.util.cache_from_source(str(source)))) for source in directory.rglob("*.py"))
    return sorted(cached for source, cached in pairs if cached.is_file() and _runs_instead(cached, source))


def _runs_instead(cached: Path, source: Path) -> bool:
    data, text, facts = cached.read_bytes(), source.read_bytes(), source.stat()
    flags = int.from_bytes(data[4:8], "little")
    if data[:4] != importlib.util.MAGIC_NUMBER or len(data) < 16:
        return False  # of another interpreter: it is written anew
    if flags & 1:  # by the hash of its source, if it asks at all
        used = not flags & 2 or data[8:16] == importlib.util.source_hash(text)
    else:
        stamp = (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        used = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")) == stamp
    return used and not _is_compiled_from(data[16:], text)


@lru_cache(maxsize=4096)
def _is_compiled_from(code: bytes, text: bytes) -> bool:
    try:
        return marshal.loads(code) == compile(text, "", "exec", dont_inherit=True)
    except (ValueError, EOFError, TypeError, SyntaxError):
        return False


def shadows(own: Iterable[str]) -> list[tuple[str, str]]:
    """(module, directory) of what a directory earlier on the path brings in place of the standard library's or an
    installed one of that name.

    Args:
        own: modules that are hashed wherever they lie.
    """
    installed = {str(path) for path in site_directories()}
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    places = [entry or os.getcwd() for entry in sys.path]
    found = {}
    for at, place in enumerate(places):
        if place in installed or any(place == str(s) or place.startswith(f"{s}{os.sep}lib-") for s in standard):
            continue
        later = set(places[at + 1 :])
        behind: set[str] = set(sys.stdlib_module_names) if later & standard else set()
        behind |= {name for each in later & installed for name in _modules(each)}
        found |= {name: place for name in sorted(_modules(place) & behind - set(own)) if name not in found}
    return list(found.items())


def _modules(place: str) -> set[str]:
    """Modules and packages that a directory or archive brings; a folder without `__init__` hides nothing."""
    return {module.name for module in pkgutil.iter_modules([place])}


def misplaced(distributions: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(module, where it would be imported from, where its distribution is) of those that lie elsewhere."""
    for name in distributions:
        module = name.replace("-", "_")
        spec = PathFinder.find_spec(module)
        try:
            home = Path(str(metadata.distribution(name).locate_file(""))).resolve()
        except metadata.PackageNotFoundError:
            continue
        if spec is not None and spec.origin and not Path(os.path.abspath(spec.origin)).is_relative_to(home):
            if not Path(spec.origin).resolve().is_relative_to(home):
                yield module, spec.origin, str(home)
