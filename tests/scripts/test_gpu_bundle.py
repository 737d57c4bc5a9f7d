"""The offline bundle: pruned wheels stay installable; damage and missing packages are named before installing."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import bundle_contents
import bundle_install
import gpu_bundle
import pytest
from wheel_surgery import rewrite

NAME = "toy-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def toy_wheel(folder: Path) -> Path:
    """A wheel of a package with a small module, a large table and a part that nobody needs."""
    members = {
        "toy/__init__.py": b"VALUE = 7\n",
        "toy/table.txt": b"".join(b"%d\n" % (i * i) for i in range(20_000)),
        "toy/viewer/window.py": b"raise SystemExit\n",
        "toy-1.0.dist-info/METADATA": METADATA.encode(),
        "toy-1.0.dist-info/WHEEL": WHEEL.encode(),
    }
    rows = [f"{name},,\n" for name in members] + ["toy-1.0.dist-info/RECORD,,\n"]
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        for name, data in {**members, "toy-1.0.dist-info/RECORD": "".join(rows).encode()}.items():
            archive.writestr(name, data)
    return folder / NAME


def test_a_rewritten_wheel_installs_without_its_pruned_members_and_with_the_added_ones(tmp_path):
    (tmp_path / "out").mkdir()
    source, pruned = toy_wheel(tmp_path), tmp_path / "out" / NAME
    assert rewrite(source, pruned, drop=r"^toy/viewer/", add={"toy/mesh.bin": b"\x00" * 5}) == 1
    assert pruned.stat().st_size < source.stat().st_size / 2
    with zipfile.ZipFile(pruned) as archive:
        assert archive.testzip() is None
        listed = {row[0] for row in csv.reader(io.StringIO(archive.read("toy-1.0.dist-info/RECORD").decode()))}
        assert listed == set(archive.namelist())
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(pruned)], check=True)
    assert sorted(p.name for p in (target / "toy").iterdir() if p.is_file()) == ["__init__.py", "mesh.bin", "table.txt"]
    assert (target / "toy" / "table.txt").read_bytes().endswith(b"399960001\n")


def test_every_requirement_is_carried_assumed_or_left_out_and_assumed_versions_suit_what_is_carried():
    carried = gpu_bundle.carried(gpu_bundle.constraints())
    assert {"transformers", "mujoco", "hydra-core", "antlr4-python3-runtime", "so101-nexus", "regex"} <= set(carried)
    assert not {"torch", "ray", "triton"} & set(carried)
    versions = gpu_bundle.constraints()
    for name in bundle_contents.ASSUMED.keys() & versions.keys():
        assert bundle_install.satisfies(versions[name], bundle_contents.ASSUMED[name]), name
    for name in ["vla-rl", *carried]:
        for requirement in gpu_bundle.requirements(name):
            stated = re.search(r">=([\d.]+)", bundle_contents.ASSUMED.get(requirement.name.lower(), ""))
            if stated:  # the lowest version that the installer lets pass is one that the requirement allows
                assert requirement.specifier.contains(stated[1]), f"{name} needs {requirement}"


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("2.11.0+cu130", ">=2.11", True),
        ("2.9.1", ">=2.11", False),
        ("0.24", ">=0.23.1,<0.24", False),
        ("0.23.2", ">=0.23.1,<0.24", True),
        ("5", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version, bounds, fits):
    assert bundle_install.satisfies(version, bounds) is fits


def test_damage_and_missing_packages_stop_the_installation_with_their_names(tmp_path, monkeypatch, capsys):
    (tmp_path / "wheels").mkdir()
    wheel = toy_wheel(tmp_path / "wheels")
    manifest = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "carried": {"toy": "1.0"}, "bases": ["tiny"],
        "assumed": {"torch": ">=2.11", "numpy": ">=99"}, "left_out": {"no-such-package": "nothing is lost"},
        "sha256": {f"wheels/{NAME}": hashlib.sha256(wheel.read_bytes()).hexdigest(), "wheels/gone.whl": "0"},
    }  # fmt: skip
    monkeypatch.setattr(bundle_install, "HERE", tmp_path)

    def attempt():
        (tmp_path / "bundle.json").write_text(json.dumps(manifest))
        monkeypatch.setattr(sys, "argv", ["install.py", "--target", str(tmp_path / "site")])
        return bundle_install.main(), capsys.readouterr()

    wheel.write_bytes(wheel.read_bytes() + b"x")
    code, said = attempt()
    assert code == 1 and not (tmp_path / "site").exists()
    assert f"wheels/{NAME} is damaged" in said.err and "gone.whl is missing" in said.err
    assert "numpy" in said.err and ">=99 is needed" in said.err and "torch" not in said.err
    toy_wheel(tmp_path / "wheels")
    manifest["sha256"].pop("wheels/gone.whl")
    manifest["assumed"] = {"torch": ">=2.11"}
    code, said = attempt()
    assert code == 0, said.err
    assert (tmp_path / "site" / "toy" / "__init__.py").is_file()
    assert "without no-such-package: nothing is lost" in said.out and "PYTHONPATH" in said.out
