"""Where boat and disk are when an episode begins: a function of the environment seed and the protocol, nothing else.

In: a seed and a `Protocol`. Out: a `Spawn`. The order of the draws is part of the protocol. Appearance, noise and
sampling have streams of their own (`vla_rl.seeds.stream`): what they draw says nothing about the poses.

Spawn v1 (documented): the disk is fixed; x, y and yaw of the boat are uniform in a patch of 34 cm^2, drawn in this
order from ``numpy.random.default_rng(seed)``.

Spawn v2: the disk is uniform over the *reach mask* (1 cm cells in which the tool can point straight down, both at the
table and at carrying height; `vla_rl.sim.reach` measures it), the boat uniform by area in a ring of 8 to 19 cm around
it. Drawn from ``seeds.stream("spawn-v2", seed)``: the cell, x and y within it; then, until one is accepted, the square
of the radius and the angle of the boat, which must lie in the mask and off the parked jaws
(`Protocol.clear_of_jaws_m`); then its yaw. Results under v1 and v2 are never compared.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_rl import seeds
from vla_rl.errors import IntegrityError
from vla_rl.sim.protocol import Protocol

CELL_M = 0.01
MASK_FILE = Path(__file__).parent / "data" / "reach_mask.txt"
RING_M = (0.08, 0.19)
# Documented: no accept in 200 tries raises, and 10,000 tries are the limit. One accept is enough, so the first binds.
MAX_TRIES = 200


@dataclass(frozen=True)
class Spawn:
    """Initial poses on the table: boat (metres, radians) and centre of the disk."""

    x_m: float
    y_m: float
    yaw_rad: float
    disk_xy_m: tuple[float, float]


@dataclass(frozen=True)
class ReachMask:
    """A set of square cells of the table. Cell (i, j) covers x in [i, i + 1) and y in [j, j + 1), in units of `CELL_M`.

    Attributes:
        cells_N2: int [N, 2], the cells in ascending order.
    """

    cells_N2: np.ndarray

    @functools.cached_property
    def _known(self) -> frozenset[tuple[int, int]]:
        return frozenset((int(i), int(j)) for i, j in self.cells_N2)

    def holds(self, x_m: float, y_m: float) -> bool:
        """Whether the point lies in one of the cells."""
        return (int(np.floor(x_m / CELL_M)), int(np.floor(y_m / CELL_M))) in self._known


@functools.cache
def reach_mask() -> ReachMask:
    """The frozen mask that ships with the package.

    Raises:
        IntegrityError: the file is missing or damaged.
    """
    try:
        return parse_mask(MASK_FILE.read_text())
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"the reach mask cannot be read: {error}", where=str(MASK_FILE), remedy="reinstall vla_rl"
        ) from None


def mask_digest() -> str:
    """SHA-256 of the mask's cells: part of the scene's digest under spawn v2."""
    return hashlib.sha256(np.ascontiguousarray(reach_mask().cells_N2, dtype="<i4").tobytes()).hexdigest()


def parse_mask(text: str) -> ReachMask:
    """Read the map that `vla_rl.sim.reach` writes: comment lines, then ``x y0 row`` with ``#`` for a cell that counts.

    Raises:
        ValueError: not such a map.
    """
    cells = []
    for line in text.splitlines():
        if not line or line.startswith("//"):
            continue
        i, j, row = line.split()
        if set(row) - {"#", "."}:
            raise ValueError(f"a row of # and . is expected, not {row!r}")
        cells += [(int(i), int(j) + k) for k, mark in enumerate(row) if mark == "#"]
    if not cells:
        raise ValueError("no cell counts")
    return ReachMask(np.array(sorted(cells), dtype=np.int32))


def draw_spawn(seed: int, protocol: Protocol) -> Spawn:
    """The spawn of an environment seed under a protocol.

    Raises:
        IntegrityError: spawn v2, and the reach mask leaves no place for the boat.
    """
    return spawn_v1(seed, protocol) if protocol.spawn == "v1" else spawn_v2(seed, protocol)


def spawn_v1(seed: int, protocol: Protocol) -> Spawn:
    """Uniform x, y and yaw of the boat, in this order from ``default_rng(seed)``; the disk is the protocol's."""
    rng = np.random.default_rng(seed)
    x_m = float(rng.uniform(*protocol.spawn_x_m))
    y_m = float(rng.uniform(*protocol.spawn_y_m))
    return Spawn(x_m, y_m, float(rng.uniform(-np.pi, np.pi)), protocol.disk_xy_m)


def spawn_v2(seed: int, protocol: Protocol, mask: ReachMask | None = None) -> Spawn:
    """Disk and boat over the reach, see the module's text.

    Args:
        seed: environment seed.
        protocol: says where the parked jaws are.
        mask: instead of the frozen one.

    Raises:
        IntegrityError: no acceptable place in `MAX_TRIES` tries.
    """
    mask = mask or reach_mask()
    rng = seeds.stream("spawn-v2", seed)
    cell = mask.cells_N2[int(rng.integers(len(mask.cells_N2)))]
    disk_x, disk_y = (float(CELL_M * (index + rng.random())) for index in cell)
    for _ in range(MAX_TRIES):
        radius_m = float(np.sqrt(rng.uniform(RING_M[0] ** 2, RING_M[1] ** 2)))
        angle = float(rng.uniform(-np.pi, np.pi))
        x_m, y_m = disk_x + radius_m * np.cos(angle), disk_y + radius_m * np.sin(angle)
        off_jaws_m = np.hypot(x_m - protocol.parked_jaws_m[0], y_m - protocol.parked_jaws_m[1])
        if mask.holds(x_m, y_m) and off_jaws_m >= protocol.clear_of_jaws_m:
            return Spawn(float(x_m), float(y_m), float(rng.uniform(-np.pi, np.pi)), (disk_x, disk_y))
    raise IntegrityError(
        f"no place for the boat in {MAX_TRIES} tries, disk at ({disk_x:.3f}, {disk_y:.3f}) m",
        where=f"spawn v2 of seed {seed}",
        remedy="the reach mask does not fit the ring around the disk: restore it",
    )
