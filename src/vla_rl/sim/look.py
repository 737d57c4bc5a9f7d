"""What a scene looks like: cameras, bracket, lens, light, sensor, clutter and background as one typed value.

In: the configuration node `sim.look`. Out: a frozen `Look`, hashable, and its digest-ready constants (with the content
of picture folders, and only the numbers that this look uses). A look holds nothing random: what an episode draws is in
`appearance`. The formulas are in `optics`, `shadow`, `clutter`, `patches` and `plates`; `painter` applies them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.config.keys import check_section
from vla_rl.config.schema import LookConfig
from vla_rl.errors import ConfigError
from vla_rl.sim import clutter, documented

VERSION = 1  # of the formulas: part of the scene's digest as soon as a look uses any of them


@dataclass(frozen=True)
class Look:
    """A scene's appearance; the meaning and unit of each field is the help text of its key in `LookConfig`."""

    cameras: str
    mount: str
    lens: str
    grade: str
    blur_px: float
    noise_counts: float
    jitter: bool
    shadow_strength: float
    shadow_px: float
    clutter: str
    patches: str | None
    composite: bool
    plates: str | None

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> Look:
        """The look of a configuration node.

        Args:
            node: all keys of `LookConfig`, e.g. ``compose("demos").tree["sim"]["look"]``.

        Raises:
            ConfigError: an unknown, missing or impossible key, or keys that contradict each other.
        """
        check_section("sim.look", LookConfig, node)
        # 2 and 2.0 are one look, and must be one digest.
        numbers = {field.name for field in dataclasses.fields(cls) if field.type == "float"}
        values: dict[str, Any] = {name: float(value) if name in numbers else value for name, value in node.items()}
        look = cls(**values)
        if look.patches is not None and look.clutter != "patches":
            raise ConfigError(
                f"sim.look.patches names a folder but clutter={look.clutter} shows no cut-outs",
                where="sim.look.patches",
                remedy="set sim.look.clutter=patches, or leave sim.look.patches away",
            )
        if look.plates is not None and not look.composite:
            raise ConfigError(
                "sim.look.plates names a folder but nothing is composited",
                where="sim.look.plates",
                remedy="choose sim/look=composite (or sim.look.composite=true), or leave sim.look.plates away",
            )
        if look.composite and look.plates is None:
            raise ConfigError(
                "this look puts the foreground over photographs of the empty table, and none ships with vla_rl",
                where="sim.look.plates",
                remedy="sim.look.plates=FOLDER with PNG photographs from the top camera's pose (all of one size), and "
                'optionally plates.json: {"file.png": {"gain": [r, g, b], "bias": [r, g, b]}}; see docs/looks.md',
            )
        return look

    @property
    def painted(self) -> bool:
        """Whether pictures differ from what the renderer gives; cameras and bracket belong to the model."""
        return bool(
            self.lens != "none"
            or self.grade != "none"
            or self.blur_px
            or self.noise_counts
            or self.jitter
            or self.shadow_strength
            or self.clutter != "none"
            or self.composite
        )

    def constants(self) -> dict[str, Any]:
        """Everything that decides pictures and is no part of the protocol, JSON-able: goes into the scene's digest."""
        used: dict[str, Any] = dataclasses.asdict(self)
        for name in ("patches", "plates"):
            folder = used[name]
            used[name] = None if folder is None else folder_digest(folder, where=f"sim.look.{name}")
        if self.cameras == "documented":
            used["camera_poses"] = documented.CAMERAS
        if self.lens != "none":
            used["lens_numbers"] = [documented.LENS_CENTRE_DEG, documented.LENS_SOURCE_DEG, documented.FITTED_WRIST]
        if self.grade == "documented":
            used["grade_numbers"] = documented.GRADE
        if self.jitter:
            used["jitter_ranges"] = documented.JITTER
        if self.shadow_strength:
            used["shadow_numbers"] = [documented.SHADOW_LIGHT, documented.SHADOW_MIN_HEIGHT_M]
        if self.clutter != "none":
            used["clutter_table"] = [dataclasses.asdict(thing) for thing in clutter.THINGS]
            used["clutter_places"] = {n: dataclasses.asdict(p) for n, p in clutter.PLACES[self.cameras].items()}
        if self.painted:
            used["version"] = VERSION
        return used


PLAIN = Look.from_config(dataclasses.asdict(LookConfig()))


def folder_digest(folder: str, *, where: str) -> str:
    """SHA-256 over names and bytes of the PNG and JSON files of a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"there is no folder {folder}", where=where, remedy="give an existing folder of PNG files")
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix.lower() in (".png", ".json"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
