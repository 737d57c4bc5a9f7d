"""Build the offline bundle: what a machine with torch but without a network needs to run vla_rl.

In: this checkout, `constraints.txt`, pip. Out: `dist/gpu-bundle/` with wheels for Python 3.12 on x86-64 Linux, an
installer and a manifest with a digest of every file; at most 45 MiB together. `python scripts/gpu_bundle.py` builds it
(`make gpu-bundle`); `scripts/check_gpu_bundle.py` proves it; docs/offline.md says how to use it.

What goes in is the closure of vla_rl's requirements, less what `bundle_contents.py` assumes on such a machine and less
what it leaves out. Wheels are pruned of members that headless use never loads, their RECORD is rewritten, and vla_rl's
own wheel carries the base that `policy=tiny` names and the simplified meshes. Not in it: torch, ray, system libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import bundle_contents as contents
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheel_surgery import rewrite

ROOT = Path(__file__).resolve().parent.parent
DESTINATION = ROOT / "dist" / "gpu-bundle"
MAX_BYTES = 45 * 2**20
TAGS = ["2_28", "2_27", "2_24", "2_17", "2_12", "2_5"]
TARGET = {"python_version": "3.12", "sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}


def main() -> int:
    """Build, report sizes and return 1 if the bundle is too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bases", default=default_base(), help="base policies to carry, separated by commas")
    bases = parser.parse_args().bases.split(",")
    unknown = [name for name in bases if not (ROOT / "src/vla_rl/bases" / name).is_dir()]
    if unknown:
        print(f"there is no base {unknown[0]} under src/vla_rl/bases", file=sys.stderr)
        return 2
    work = DESTINATION.with_name("gpu-bundle-work")
    for directory in (work, DESTINATION):
        shutil.rmtree(directory, ignore_errors=True)
    versions = constraints()
    names = carried(versions)
    print(f"fetching {len(names)} wheels: {', '.join(f'{n} {versions[n]}' for n in names)}")
    fetch(names, versions, work)
    build_own(work)
    extra = {"vla_rl": {f"vla_rl/meshes/{path.name}": path.read_bytes() for path in meshes(work / "cache")}}
    prune = contents.PRUNED | {"vla_rl": rf"^vla_rl/bases/(?!(?:{'|'.join(map(re.escape, bases))})/)."}
    (DESTINATION / "wheels").mkdir(parents=True)
    for wheel in sorted(work.glob("*.whl")):
        name = wheel.name.split("-")[0].lower()
        rewrite(wheel, DESTINATION / "wheels" / wheel.name, drop=prune.get(name), add=extra.get(name, {}))
        before, after = (path.stat().st_size / 2**20 for path in (wheel, DESTINATION / "wheels" / wheel.name))
        print(f"  {after:6.2f} MiB (was {before:6.2f})  {wheel.name}")
    finish(bases, names, versions)
    shutil.rmtree(work)
    size = sum(path.stat().st_size for path in DESTINATION.rglob("*") if path.is_file())
    print(f"{DESTINATION}: {size / 2**20:.1f} MiB (at most {MAX_BYTES / 2**20:.0f}), base {', '.join(bases)}")
    return 0 if size <= MAX_BYTES else 1


def default_base() -> str:
    """The base that ``policy=tiny`` means."""
    found = re.search(r"^checkpoint: bundled:(\S+)$", (ROOT / "conf/policy/tiny.yaml").read_text(), re.MULTILINE)
    assert found, "conf/policy/tiny.yaml names no bundled base"
    return found[1]


def constraints() -> dict[str, str]:
    """The tested versions by canonical name."""
    pairs = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}


def carried(versions: Mapping[str, str]) -> list[str]:
    """Everything that vla_rl needs, directly or not, but what is assumed or left out; from this environment's metadata.

    A package that is assumed or left out is not looked into: what it needs comes, or stays behind, with it.
    """
    found: set[str] = set()
    queue = ["vla-rl"]
    while queue:
        for requirement in requirements(queue.pop()):
            name = canonicalize_name(requirement.name)
            if name in found or name in contents.ASSUMED or name in contents.LEFT_OUT:
                continue
            if name not in versions:
                raise SystemExit(f"{name} is needed and has no version in constraints.txt")
            found.add(name)
            queue.append(name)
    return sorted(found)


def requirements(name: str) -> list[Requirement]:
    """What a distribution needs on the target, without extras; our own needs are those of the checkout."""
    if name == "vla-rl":
        lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    else:
        lines = metadata.requires(name) or []
    return [r for r in map(Requirement, lines) if not r.marker or r.marker.evaluate(TARGET)]


def fetch(names: list[str], versions: Mapping[str, str], work: Path) -> None:
    """Wheels of the tested versions for the target, and one built here where only a source archive is published."""
    pins = {name: f"{name}=={versions[name]}" for name in names}
    built = [pins.pop(name) for name in contents.BUILT_HERE if name in pins]
    target = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"]
    target += [f"--platform=manylinux_{tag}_x86_64" for tag in TAGS] + ["--platform=manylinux2014_x86_64"]
    pip("download", "--no-deps", *target, "--dest", str(work), *pins.values())
    if built:
        pip("wheel", "--no-deps", "--wheel-dir", str(work), *built)


def build_own(work: Path) -> None:
    """Our own wheel, with `conf/` and the bases inside."""
    pip("wheel", "--no-deps", "--wheel-dir", str(work), str(ROOT))


def meshes(cache: Path) -> list[Path]:
    """The simplified meshes of the robot: the same ones for every protocol and look."""
    code = "from vla_rl.sim.protocol import PROTOCOLS; from vla_rl.sim.robot import robot_spec\n"
    code += "for protocol in PROTOCOLS.values(): robot_spec(protocol)"
    environment = {**os.environ, "VLA_RL_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return sorted(cache.glob("*.npz"))


def finish(bases: list[str], names: list[str], versions: Mapping[str, str]) -> None:
    """Installer and manifest; the manifest comes last and holds the digests of all other files."""
    for source, name in (("bundle_install.py", "install.py"), ("bundle_install.sh", "install.sh")):
        shutil.copy2(ROOT / "scripts" / source, DESTINATION / name)
    files = sorted(path for path in DESTINATION.rglob("*") if path.is_file())
    manifest = {
        "python": "3.12",
        "carried": {name: versions[name] for name in names},
        "bases": bases,
        "assumed": contents.ASSUMED,
        "left_out": contents.LEFT_OUT,
        "pruned": contents.PRUNED,
        "sha256": {str(p.relative_to(DESTINATION)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files},
    }
    (DESTINATION / "bundle.json").write_text(json.dumps(manifest, indent=1) + "\n")


def pip(*arguments: str) -> None:
    """Run pip of this interpreter; downloads come from wherever it is set up to look."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
