"""Photographs of the empty table as background of the top camera.

In: a folder of PNGs. Out: a bank of plates, each with the light it was taken in, and the formula that puts rendered
foreground over one. None ships with the package, and none is made here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from vla_rl.errors import ConfigError

WHERE = "sim.look.plates"


@dataclass(frozen=True)
class Plate:
    """One photograph.

    Attributes:
        image: RGB, as stored.
        gain_3, bias_3: float32, what the foreground takes on (counts) to share this photograph's light.
    """

    image: Image.Image
    gain_3: np.ndarray
    bias_3: np.ndarray

    def fitted(self, width_px: int, height_px: int) -> np.ndarray:
        """float32 [height, width, 3]: the middle of the photograph, full height, scaled to a picture's size.

        Raises:
            ConfigError: the picture is wider than the photograph.
        """
        crop_px = self.image.height * width_px / height_px
        if crop_px > self.image.width + 1.0:
            raise ConfigError(
                f"a {width_px} x {height_px} picture is wider than the {self.image.width} x {self.image.height} plate",
                where=WHERE,
                remedy="use pictures no wider than the photographs, e.g. square ones",
            )
        left = max((self.image.width - crop_px) / 2.0, 0.0)
        box = (left, 0.0, min(left + crop_px, self.image.width), float(self.image.height))
        fitted = self.image.resize((width_px, height_px), Image.Resampling.BICUBIC, box=box, reducing_gap=None)
        return np.asarray(fitted, np.float32)


def load_plates(folder: str) -> tuple[Plate, ...]:
    """The bank of a folder: its ``*.png`` in name order, with ``plates.json`` if it is there.

    ``plates.json`` is ``{"file.png": {"gain": [r, g, b], "bias": [r, g, b]}, …}`` with biases in counts; a file without
    an entry has gain 1 and bias 0.

    Raises:
        ConfigError: no PNG, one that cannot be read, or a file of numbers that does not fit.
    """
    path = Path(folder).expanduser()
    files = sorted(path.glob("*.png"))
    if not files:
        raise ConfigError(f"no PNG in {folder}", where=WHERE, remedy="photographs of the empty table, top camera")
    lights = _lights(path / "plates.json", {file.name for file in files})
    plates = []
    for file in files:
        try:
            with Image.open(file) as image:
                rgb = image.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise ConfigError(f"cannot read {file}: {error}", where=WHERE, remedy="an RGB PNG") from None
        gain, bias = lights.get(file.name, ((1.0,) * 3, (0.0,) * 3))
        plates.append(Plate(rgb, np.array(gain, np.float32), np.array(bias, np.float32)))
    return tuple(plates)


def _lights(path: Path, names: set[str]) -> dict[str, tuple[Any, Any]]:
    if not path.is_file():
        return {}
    remedy = '{"file.png": {"gain": [r, g, b], "bias": [r, g, b]}}'
    try:
        lights = {name: (entry["gain"], entry["bias"]) for name, entry in json.loads(path.read_text()).items()}
        shapes = {np.array(numbers, np.float64).shape for pair in lights.values() for numbers in pair}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error!r}", where=WHERE, remedy=remedy) from None
    if strangers := sorted(set(lights) - names):
        raise ConfigError(f"{path} names {strangers[0]}, which is not there", where=WHERE, remedy=remedy)
    if shapes - {(3,)}:
        raise ConfigError(f"{path}: gain and bias are three numbers each", where=WHERE, remedy=remedy)
    return lights


def compose_over(foreground_HW3: np.ndarray, weight_HW1: np.ndarray, background_HW3: np.ndarray) -> np.ndarray:
    """``weight * foreground + (1 - weight) * background``; the weight is clipped to [0, 1]."""
    weight = np.clip(weight_HW1, 0.0, 1.0)
    return weight * foreground_HW3 + (1.0 - weight) * background_HW3
