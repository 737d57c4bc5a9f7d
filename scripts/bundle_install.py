"""Install vla_rl from this folder, without a network: check the files, check the machine, install, say what is missing.

In: the folder that this file lies in, and the interpreter that runs it. Out: the carried wheels installed into that
interpreter's environment, or into a folder of their own (`--target`), which leaves the machine's packages as they are.
Needs Python 3.12 and pip, nothing else. Exit code 0, or 1 with everything that is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Check, install, report."""
    parser = argparse.ArgumentParser(description="Install vla_rl from this folder, without a network.")
    parser.add_argument("--target", metavar="DIR", help="install into this folder; then set PYTHONPATH to it")
    parser.add_argument("--check", action="store_true", help="only check the files and the machine")
    options = parser.parse_args()
    manifest = json.loads((HERE / "bundle.json").read_text())
    problems = damaged(HERE, manifest["sha256"]) + machine_problems(manifest)
    if problems:
        print("vla_rl cannot be installed here:", *problems, sep="\n  - ", file=sys.stderr)
        return 1
    print(
        f"files intact; torch {metadata.version('torch')} and {len(manifest['assumed']) - 1} assumed packages are here"
    )
    if not options.check:
        install(sorted(manifest["sha256"]), options.target)
        carried = ", ".join(f"{name} {version}" for name, version in manifest["carried"].items())
        print(f"installed vla_rl with the base {', '.join(manifest['bases'])}, and {carried}")
    for name, cost in manifest["left_out"].items():
        if version_of(name) is None:
            print(f"without {name}: {cost}")
    if options.target and not options.check:
        print(f"now: export PYTHONPATH={options.target}; python3 -m vla_rl.cli.main eval eval.seeds=300-301")
    return 0


def damaged(folder: Path, digests: dict[str, str]) -> list[str]:
    """Files that are missing or are not those that were built."""
    found = []
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(f"{name} is damaged: its digest is not the recorded one; copy it again")
    return found


def machine_problems(manifest: dict) -> list[str]:
    """What this machine lacks: the interpreter, the processor, and packages that the bundle does not carry."""
    found = []
    if platform.python_version_tuple()[:2] != tuple(manifest["python"].split(".")):
        found.append(f"the wheels are for Python {manifest['python']}, this is {platform.python_version()}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        found.append(f"the wheels are for Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    if find_spec("_lzma") is None:
        found.append("this Python was built without lzma, which the wheels are packed with")
    for name, bounds in manifest["assumed"].items():
        version = version_of(name)
        if version is None:
            found.append(f"{name} {bounds} is missing; the bundle does not carry it")
        elif not satisfies(version, bounds):
            found.append(f"{name} {version} is here, {bounds} is needed")
    return found


def version_of(name: str) -> str | None:
    """Installed version of a distribution, None if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ``>=0.23.1,<0.24``; local labels (``+cu130``) do not count."""
    for operator, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
        if (_numbers(version) >= _numbers(bound)) != (operator == ">="):
            return False
    return True


def install(files: list[str], target: str | None) -> None:
    """Let pip install the wheels by file, which needs no index; it replaces other versions of the same packages."""
    wheels = [str(HERE / name) for name in files if name.endswith(".whl")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--find-links", str(HERE / "wheels"), "--no-deps", "--upgrade", "--force-reinstall", "--no-compile"]
    subprocess.run([*command, *(["--target", target] if target else []), *wheels], check=True)


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    return tuple(numbers + [0] * (4 - len(numbers)))


if __name__ == "__main__":
    sys.exit(main())
