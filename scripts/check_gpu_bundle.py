"""Prove the offline bundle: install it without a network beside torch 2.11 and transformers 5.17, and evaluate.

In: `dist/gpu-bundle/`. Out: exit code 0 and what was proven, or the first thing that failed. `make check-gpu-bundle`
runs it. The machine is imitated by an environment of its own with what `MACHINE` lists, put back into that state at
every run; preparing it downloads gigabytes once, and is the only step with a network. Not proven: a GPU and its driver.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "dist" / "gpu-bundle"
# The machine that the bundle is meant for: nothing newer of torch and transformers than this.
MACHINE = ("torch==2.11.0", "transformers==5.17.0", "tokenizers==0.23.2", "numpy==2.5.2", "scipy", "pyarrow", "pillow")
VERSIONS = dict(each.split("==") for each in MACHINE if "==" in each)
SEEDS = "300,301"

# Run inside: requirements of what is installed that nothing fulfils, and where things come from.
INSIDE = """
import json, sys
from importlib import metadata
from packaging.requirements import Requirement
manifest = json.load(open(sys.argv[1]))
unmet = []
for name in ["vla-rl", *manifest["carried"]]:
    for text in metadata.requires(name) or []:
        r = Requirement(text)
        if (r.marker and not r.marker.evaluate({"extra": ""})) or r.name.lower() in manifest["left_out"]:
            continue
        try:
            version = metadata.version(r.name)
        except metadata.PackageNotFoundError:
            version = None
        if version is None or not r.specifier.contains(version, prereleases=True):
            unmet.append(f"{name} needs {text}, found {version}")
import vla_rl
print(json.dumps({"unmet": unmet, "vla_rl": vla_rl.__file__, "transformers": metadata.version("transformers"),
                  "torch": metadata.version("torch")}))
"""


def main() -> int:
    """Prepare, install, evaluate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--machine", type=Path, default=ROOT / ".venv-gpu-machine", help="environment to use")
    machine = parser.parse_args().machine.absolute()
    manifest = json.loads((BUNDLE / "bundle.json").read_text())
    prepare(machine, manifest)
    offline = without_network()
    with tempfile.TemporaryDirectory() as scratch:
        environment = outside(Path(scratch))

        def run(*command: str) -> str:
            done = subprocess.run([*offline, *command], env=environment, cwd=scratch, text=True, stdout=subprocess.PIPE)
            if done.returncode:
                raise SystemExit(f"failed with code {done.returncode}: {' '.join(command)}")
            return done.stdout

        python = str(machine / "bin" / "python")
        print(run("env", f"PYTHON={python}", "sh", str(BUNDLE / "install.sh")), end="")
        found = json.loads(run(python, "-c", INSIDE, str(BUNDLE / "bundle.json")))
        assert not found["unmet"], found["unmet"]
        assert Path(found["vla_rl"]).is_relative_to(machine), found
        assert found["transformers"] == manifest["carried"]["transformers"], found
        assert found["torch"].startswith(VERSIONS["torch"]), found
        command = [str(machine / "bin" / "vla-rl"), "eval", f"eval.seeds={SEEDS}", "run.dir=record", "--json"]
        summary = json.loads(run(*command, "--video", "none"))["summary"]
        assert summary["trials"] == len(SEEDS.split(",")) and summary["training_scene_match"] == "same", summary
        assert not list((Path(scratch) / "cache").rglob("*.npz")), "meshes were simplified again"
    print(
        f"installed and run {'without a network' if offline else 'with pip and the hub told to stay offline'}: "
        f"torch {found['torch']}, transformers {VERSIONS['transformers']} -> {found['transformers']}; "
        f"{summary['successes']} of {summary['trials']} episodes succeeded on seeds {SEEDS}"
    )
    return 0


def prepare(machine: Path, manifest: dict) -> None:
    """The machine as it is before the bundle comes: made, or put back into that state."""
    python = str(machine / "bin" / "python")
    if not Path(python).exists():
        print(f"making {machine} (downloads gigabytes) ...")
        venv.create(machine, with_pip=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2] == (3, 12))"], stdout=subprocess.PIPE
    )
    assert version.stdout.strip() == b"True", f"{python} is not Python 3.12"
    subprocess.run([*pip, "uninstall", "--yes", "vla-rl", *manifest["carried"]], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*pip, "install", *MACHINE], check=True)


def without_network() -> list[str]:
    """A prefix that runs a command in a network namespace of its own; empty where that is not permitted."""
    prefix = ["unshare", "--map-root-user", "--net"]
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []
    except OSError:
        return []


def outside(scratch: Path) -> dict[str, str]:
    """An environment that knows nothing of this checkout, with the hub and pip told to stay offline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    told = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "VLA_RL_CACHE": str(scratch / "cache")}
    return kept | told


if __name__ == "__main__":
    sys.exit(main())
