"""Data flows one way: a module imports only from its own layer or from one above it in the contract's list."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "vla_rl"
LAYERS = [
    ("errors", "files", "paths", "seeds"),
    ("config",),
    ("stats",),
    ("prereg",),
    ("sim",),
    ("policy",),
    ("rollout",),
    ("rl",),
    ("sft",),
    ("evals",),
    ("report",),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FREE_OF = {
    "torch": {"errors", "files", "paths", "seeds", "config", "stats", "prereg", "sim", "report"},
    "mujoco": {"errors", "files", "paths", "seeds", "config", "stats", "prereg", "policy", "rl", "sft", "report"},
}


def imports(tree: ast.AST) -> list[str]:
    """Every imported module, function-local imports included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            module = node.module or ""
            found += [f"{module}.{alias.name}" for alias in node.names] if module == "vla_rl" else [module]
    return found


def layer(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


MODULES = sorted(p for p in SRC.rglob("*.py") if p != SRC / "__init__.py")


def test_every_module_belongs_to_a_layer():
    assert {layer(p) for p in MODULES} <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_module_imports_only_from_its_own_layer_or_one_above(path):
    own = layer(path)
    for name in imports(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] == "vla_rl" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[own], f"{own} imports {name} from a layer below it"
        if parts[0] in FREE_OF:
            assert own not in FREE_OF[parts[0]], f"{own} may not import {parts[0]}"


@pytest.mark.parametrize(
    "module", ["vla_rl.prereg", "vla_rl.stats.intervals", "vla_rl.config.compose", "vla_rl.cli.main"]
)
def test_light_packages_import_without_torch_and_mujoco(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'mujoco', 'transformers') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
