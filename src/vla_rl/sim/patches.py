"""Flat clutter: cut-outs that lie on the table plane, warped into the picture behind robot, boat and disk.

In: what lies where, a camera. Out: a premultiplied RGBA layer of the camera's picture. Cut-outs come from a folder, or
are drawn here; none is stored. A cut-out is a view from straight above: its columns run along the thing's own -y and
its rows along its own -x, as the documented top camera sees a thing of yaw 0.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, UnidentifiedImageError

from vla_rl.errors import ConfigError
from vla_rl.sim.clutter import THINGS, Placed
from vla_rl.sim.pinhole import Pinhole, Pose
from vla_rl.sim.remap import bilinear_weights

WHERE = "sim.look.patches"
DRAWN_PX_PER_M, SUPERSAMPLE = 1000.0, 4
LEVELS = 6  # each cut-out is kept at this many resolutions, halved each time, so that a far one does not flicker


class CutOut:
    """One RGBA picture of known width, at falling resolutions.

    Args:
        image: RGBA.
        width_m: width of its columns on the table, metres.
    """

    def __init__(self, image: Image.Image, width_m: float) -> None:
        px_per_m = image.width / width_m
        self.reach_m = float(np.hypot(*image.size)) / 2 / px_per_m  # nothing of it lies farther from its centre
        rgba = np.asarray(image.convert("RGBA"), np.float32)
        alpha = rgba[..., 3:] / 255.0
        layer = np.concatenate([rgba[..., :3] * alpha, alpha], axis=2)
        # A transparent rim that is still one pixel wide at the coarsest level: places outside read as nothing.
        rim = 2 ** (LEVELS - 1)
        grow = [-(-(n + 2 * rim) // rim) * rim - n for n in layer.shape[:2]]
        layer = np.pad(layer, [*((g // 2, g - g // 2) for g in grow), (0, 0)])
        self.levels = [(px_per_m, layer)]
        for _ in range(LEVELS - 1):
            height, width = layer.shape[0] // 2, layer.shape[1] // 2
            layer = layer.reshape(height, 2, width, 2, 4).mean(axis=(1, 3))
            px_per_m /= 2.0
            self.levels.append((px_per_m, layer))

    def level(self, px_per_m: float) -> tuple[float, np.ndarray]:
        """The coarsest version that is at least as fine as asked, or the finest there is: px per metre, RGBA."""
        return min((lv for lv in self.levels if lv[0] >= px_per_m), key=lambda lv: lv[0], default=self.levels[0])


def load_cutouts(folder: str | None) -> dict[str, CutOut]:
    """Cut-outs by name of the thing: drawn ones, or those of a folder.

    Args:
        folder: holds ``patches.json``, ``{"mouse": {"file": "mouse.png", "width_m": 0.11}, …}`` with names of `THINGS`;
            a thing that is not listed is never shown. None: drawn here.

    Raises:
        ConfigError: naming what is wrong with the folder.
    """
    if folder is None:
        return drawn_cutouts()
    path = Path(folder).expanduser() / "patches.json"
    known = [thing.name for thing in THINGS]
    shape = f'{{"NAME": {{"file": "x.png", "width_m": 0.1}}}} with NAME among {", ".join(known)}'
    try:
        listed = json.loads(path.read_text())
        cutouts = {}
        for name, entry in listed.items():
            if name not in known or not float(entry["width_m"]) > 0.0:
                raise ConfigError(f"{path}: {name!r} is no entry that can be used", where=WHERE, remedy=shape)
            with Image.open(path.parent / str(entry["file"])) as image:
                cutouts[name] = CutOut(image, float(entry["width_m"]))
    except (OSError, UnidentifiedImageError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read cut-outs: {error}", where=f"{WHERE}={folder}", remedy=shape) from None
    if not cutouts:
        raise ConfigError(f"{path} lists no cut-out", where=WHERE, remedy=shape)
    return cutouts


@functools.cache
def drawn_cutouts() -> dict[str, CutOut]:
    """Simple drawings of every thing, seen from above, antialiased."""
    drawings = {"mouse": _draw_mouse, "mug": _draw_mug, "laptop": _draw_laptop, "pcb": _draw_pcb}
    cutouts = {}
    for thing in THINGS:
        # A mug's handle reaches beyond its body.
        width_m, height_m = (2.0 * half * (1.5 if thing.name == "mug" else 1.0) for half in thing.half_m[1::-1])
        px = [round(metres * DRAWN_PX_PER_M) for metres in (width_m, height_m)]
        image = Image.new("RGBA", (px[0] * SUPERSAMPLE, px[1] * SUPERSAMPLE), (0, 0, 0, 0))
        drawings[thing.name](ImageDraw.Draw(image), *image.size)
        cutouts[thing.name] = CutOut(image.resize((px[0], px[1]), Image.Resampling.BOX), width_m)
    return cutouts


def _draw_mouse(draw: ImageDraw.ImageDraw, w: int, h: int) -> None:
    draw.ellipse((0, 0, w - 1, h - 1), fill=(72, 74, 80, 255))
    draw.ellipse((w * 0.06, h * 0.08, w * 0.92, h * 0.80), fill=(92, 94, 100, 255))
    draw.line((w * 0.02, h / 2, w * 0.45, h / 2), fill=(50, 51, 55, 255), width=h // 30)
    draw.rounded_rectangle((w * 0.14, h * 0.45, w * 0.30, h * 0.55), h // 25, fill=(28, 28, 30, 255))


def _draw_mug(draw: ImageDraw.ImageDraw, w: int, h: int) -> None:
    radius, x, y = h / 3.0, w / 2.0, h / 2.0
    draw.rounded_rectangle((x + radius * 0.8, y - h * 0.07, w - 1, y + h * 0.07), h // 16, fill=(212, 209, 202, 255))
    for share, colour in ((1.0, (226, 223, 216, 255)), (0.88, (176, 172, 164, 255)), (0.82, (70, 44, 28, 255))):
        r = radius * share
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    draw.arc((x - radius * 0.7, y - radius * 0.7, x + radius * 0.7, y + radius * 0.7), 200, 260, (104, 72, 50, 255), 6)


def _draw_laptop(draw: ImageDraw.ImageDraw, w: int, h: int) -> None:
    draw.rounded_rectangle((0, 0, w - 1, h - 1), w // 30, fill=(64, 66, 70, 255))
    draw.rectangle((w * 0.06, h * 0.08, w * 0.94, h * 0.56), fill=(36, 37, 40, 255))
    for row in range(5):
        for column in range(12):
            x, y = w * (0.07 + 0.0725 * column), h * (0.09 + 0.095 * row)
            draw.rounded_rectangle((x, y, x + w * 0.06, y + h * 0.075), w // 200, fill=(20, 20, 22, 255))
    draw.rounded_rectangle((w * 0.34, h * 0.64, w * 0.66, h * 0.94), w // 60, fill=(84, 86, 90, 255))


def _draw_pcb(draw: ImageDraw.ImageDraw, w: int, h: int) -> None:
    draw.rounded_rectangle((0, 0, w - 1, h - 1), w // 20, fill=(22, 86, 44, 255))
    draw.rectangle((w * 0.30, h * 0.28, w * 0.62, h * 0.72), fill=(24, 24, 26, 255))
    draw.rectangle((w * 0.80, h * 0.30, w * 0.99, h * 0.70), fill=(186, 188, 192, 255))
    for i in range(8):
        x = w * (0.08 + 0.085 * i)
        for y in (h * 0.05, h * 0.86):
            draw.rectangle((x, y, x + w * 0.045, y + h * 0.09), fill=(212, 176, 70, 255))


def table_layer(placed: Sequence[Placed], cutouts: dict[str, CutOut], camera: Pinhole, pose: Pose) -> np.ndarray | None:
    """All cut-outs in one picture, float32 [height, width, 4]: RGB in counts times alpha, and alpha in [0, 1].

    Each pixel's ray is cut with the table plane z = 0 and looked up in the cut-out, bilinearly. None when no cut-out
    is in view.
    """
    layer = None
    for item in placed:
        cutout = cutouts.get(THINGS[item.thing].name)
        window = None if cutout is None else _window(item, cutout.reach_m, camera, pose)
        if cutout is None or window is None:
            continue
        rows, columns = (grid.ravel() for grid in np.mgrid[window])
        own_N2, reach = _on_table(item, camera.directions(rows, columns) @ pose.axes_33.T, pose)
        hit = (np.abs(own_N2) <= cutout.reach_m).all(axis=1)
        if not hit.any():
            continue
        rgba = _look_up(own_N2[hit], cutout, camera.focal_px / float(reach[hit].min()))
        if layer is None:
            layer = np.zeros((camera.height_px, camera.width_px, 4), np.float32)
        under = layer[rows[hit], columns[hit]]
        layer[rows[hit], columns[hit]] = rgba + under * (1.0 - rgba[:, 3:])
    return layer


def _window(item: Placed, reach_m: float, camera: Pinhole, pose: Pose) -> tuple[slice, slice] | None:
    """Rows and columns that a square of half side `reach_m` about the thing may touch; None when it is out of view."""
    offsets = np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)]) * reach_m
    corners = np.column_stack([np.array([item.x_m, item.y_m]) + offsets, np.zeros(4)])
    row, column, depth = camera.project(corners, pose)
    if (depth <= 1e-3).all():
        return None
    if (depth <= 1e-3).any():  # partly behind the camera: projections of those corners mean nothing
        return slice(0, camera.height_px), slice(0, camera.width_px)
    top, bottom = max(0, int(row.min())), min(camera.height_px, int(np.ceil(row.max())) + 1)
    left, right = max(0, int(column.min())), min(camera.width_px, int(np.ceil(column.max())) + 1)
    return (slice(top, bottom), slice(left, right)) if top < bottom and left < right else None


def _on_table(item: Placed, rays_N3: np.ndarray, pose: Pose) -> tuple[np.ndarray, np.ndarray]:
    """Where world rays meet the table, in the thing's own x and y (metres; infinite above the horizon), and how far."""
    falls = rays_N3[:, 2] < -1e-6
    reach = np.where(falls, pose.position_m[2] / -np.where(falls, rays_N3[:, 2], -1.0), np.inf)
    safe = np.where(falls, reach, 0.0)
    dx = pose.position_m[0] + safe * rays_N3[:, 0] - item.x_m
    dy = pose.position_m[1] + safe * rays_N3[:, 1] - item.y_m
    cos, sin = np.cos(item.yaw_rad), np.sin(item.yaw_rad)
    own_N2 = np.stack([cos * dx + sin * dy, -sin * dx + cos * dy], axis=1)
    own_N2[~falls] = np.inf
    return own_N2, reach


def _look_up(own_N2: np.ndarray, cutout: CutOut, px_per_m: float) -> np.ndarray:
    """Premultiplied RGBA [N, 4] at places in the thing's own frame; nothing outside the cut-out."""
    scale, layer = cutout.level(px_per_m)
    height, width = layer.shape[:2]
    row, column = (height - 1) / 2.0 - own_N2[:, 0] * scale, (width - 1) / 2.0 - own_N2[:, 1] * scale
    return bilinear_weights(row, column, (height, width)) @ layer.reshape(-1, 4)
