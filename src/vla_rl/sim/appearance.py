"""What an episode draws for its pictures: tint, light, plate and clutter.

In: a look and an environment seed. Out: an `Appearance`. Every draw comes from the stream ``appearance`` and none from
the spawn's, so no colour tells where the boat is; each kind of content has a stream of its own, so switching one on
leaves the others as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vla_rl import seeds
from vla_rl.sim import documented
from vla_rl.sim.clutter import Placed, place_things

if TYPE_CHECKING:
    from vla_rl.sim.look import Look

_JITTER, _PLATE, _CLUTTER = range(3)  # streams of their own


@dataclass(frozen=True)
class Jitter:
    """One episode's light and tones.

    Attributes:
        tint: grey level of the boat in [0, 1].
        casts: what is added to it in red, green and blue.
        sun_tilt_rad, sun_azimuth_rad: where the sun stands off vertical.
        sun_gain, warmth: factor of the sun's light, and what red gains and blue loses of it.
        fill_gain: factor of the headlight's diffuse light.
        table_gain: factor of the table's colour.
    """

    tint: float
    casts: tuple[float, float, float]
    sun_tilt_rad: float
    sun_azimuth_rad: float
    sun_gain: float
    warmth: float
    fill_gain: float
    table_gain: float

    @property
    def boat_rgb(self) -> np.ndarray:
        """float64 [3] in [0.05, 1]."""
        return np.clip(self.tint + np.array(self.casts), 0.05, 1.0)

    @property
    def sun_direction(self) -> np.ndarray:
        """The way the light travels, unit vector [3]; straight down without tilt."""
        sin = np.sin(self.sun_tilt_rad)
        return np.array(
            [sin * np.cos(self.sun_azimuth_rad), sin * np.sin(self.sun_azimuth_rad), -np.cos(self.sun_tilt_rad)]
        )

    @property
    def sun_factor(self) -> np.ndarray:
        """float64 [3], factor of the sun's diffuse light per channel."""
        return self.sun_gain * np.array([1.0 + self.warmth, 1.0, 1.0 - self.warmth])


def draw_jitter(rng: np.random.Generator) -> Jitter:
    """The documented draws in the documented order."""
    ranges = iter(documented.JITTER.values())
    tint = float(rng.uniform(*next(ranges)))
    red, green, blue = rng.uniform(*next(ranges), size=3).tolist()
    return Jitter(tint, (red, green, blue), *(float(rng.uniform(*bounds)) for bounds in ranges))


@dataclass(frozen=True)
class Appearance:
    """All that is random about the pictures of an episode, except the sensor's noise.

    Attributes:
        seed: environment seed.
        jitter: None when the look has none.
        things: clutter that is there.
        plate: index of the photograph, None when the look composites nothing.
    """

    seed: int
    jitter: Jitter | None
    things: tuple[Placed, ...]
    plate: int | None


def draw_appearance(look: Look, seed: int, plates: int) -> Appearance:
    """Draw the appearance of an episode.

    Args:
        look: what is drawn at all.
        seed: environment seed.
        plates: number of photographs in the look's bank.
    """

    def stream(kind: int) -> np.random.Generator:
        return seeds.stream("appearance", seed, kind)

    return Appearance(
        seed=seed,
        jitter=draw_jitter(stream(_JITTER)) if look.jitter else None,
        things=place_things(stream(_CLUTTER), look.cameras) if look.clutter != "none" else (),
        plate=int(stream(_PLATE).integers(plates)) if look.composite else None,
    )
