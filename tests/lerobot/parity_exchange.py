"""What both sides of the comparison with LeRobot share: names, questions, files. Imports neither package.

Arrays pass as safetensors and everything else as JSON, so nothing is pickled. A side writes its answers under names;
`parity_compare` knows which of them must agree, and how closely.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

CAMERAS = ("top", "wrist")
TAG = "so100_so101_molmoact2"
# What a user of LeRobot sets for an arm that was calibrated with its version 0.5 or later.
JOINT_SIGNS = [1.0, -1.0, 1.0, 1.0, 1.0, 1.0]
JOINT_OFFSETS = [0.0, 90.0, 90.0, 0.0, 0.0, 0.0]

# Two checkpoints: one made from scratch, and what `export_policy` writes of it after its weights have changed.
CHECKPOINTS = ("release", "export")
# Tables of one arm as three files might hold them: in the release's joint frame, fitted in the rig's, or the release's
# mapped to the rig's, where the shoulder lift descends. LeRobot maps angles for the first only.
TABLES = {"release": True, "tables_rig": False, "tables_mapped": False}
TASKS = (
    "Pick up the toy boat and place it on the wooden disk.",
    "  Task:  Grab the   BOAT!  Then put it down?  ",
    "The task is to the task is to “push (it) forward”…",
    "instruction - Déplace le bateau à 10.5 cm; lâche-le, puis\nattends",
    "[goal: 把船放到盘子上]",
    "don't touch anything: stay!!",
)
# Height and width of the pictures of each question; the network looks at 40 x 40.
SIZES = ((40, 40), (60, 80), (25, 33), (97, 40))
# Which states each question, and each task of the prompts, is asked with; `parity_ours.questions` says what they are.
ASKED, SPOKEN = (10, 11, 4, 6), tuple((3 + k, 4 + k, 5 + k) for k in range(len(TASKS)))
# Keys of the noise of each question's chunk: environment seed, draw, replan.
RUN_SEED, KEYS = 7, ((100, 0, 0), (100, 1, 3), (101, 0, 0), (102, 0, 29))


class Answers:
    """Named arrays and facts of one side.

    Paths are without suffix: arrays lie in `.safetensors`, facts in `.json`.
    """

    def __init__(self, arrays: dict[str, np.ndarray] | None = None, facts: dict[str, Any] | None = None) -> None:
        self.arrays, self.facts = arrays if arrays is not None else {}, facts if facts is not None else {}

    def save(self, path: Path) -> None:
        save_file({name: np.ascontiguousarray(a) for name, a in self.arrays.items()}, path.with_suffix(".safetensors"))
        self.write_facts(path)

    def write_facts(self, path: Path) -> None:
        path.with_suffix(".json").write_text(json.dumps(self.facts, indent=1, sort_keys=True) + "\n")

    @classmethod
    def load(cls, path: Path) -> Answers:
        return cls(load_file(path.with_suffix(".safetensors")), json.loads(path.with_suffix(".json").read_text()))


def versions(*packages: str) -> dict[str, str]:
    """Installed versions by distribution."""
    return {package: metadata.version(package) for package in packages}


def digest(tensors: dict[str, np.ndarray]) -> str:
    """SHA-256 over names and numbers, sorted by name."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + b"\0" + np.ascontiguousarray(tensors[name]).tobytes())
    return total.hexdigest()
