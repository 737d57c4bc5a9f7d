"""Makes a look's pictures: dresses the renderer's scene, renders what is needed, and develops it like a camera.

In: physics data, a camera and size, an episode's appearance, the tick. Out: uint8 pictures. Nothing of an episode is
written into the shared model: colours, light and shapes go into the renderer's scene after it has been refilled from
the model, and the next picture refills it. So a picture depends on its arguments alone, whatever was drawn before.

Order: render (pinhole; wider and larger for a lens) - cut-outs and shadow behind the foreground - lens - grade -
[top camera of a composite: plate's light, blur of the foreground, over the plate] or blur - noise - rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.sim import clutter, documented, lens, optics, patches, plates, shadow
from vla_rl.sim.appearance import Appearance, Jitter, draw_appearance
from vla_rl.sim.gl import MjData, MjModel, Renderer, mujoco, switch_effects_off
from vla_rl.sim.look import Look
from vla_rl.sim.pinhole import Pinhole, Pose
from vla_rl.sim.remap import Remap, lens_remap

MAX_REMEMBERED = 1024  # appearances of episodes; drawing one again gives the same
type RendererOf = Callable[[int, int], Renderer]


@dataclass(frozen=True)
class View:
    """What is fixed for a camera at a picture size: the pinhole that is rendered, and the lens behind it."""

    source: Pinhole
    remap: Remap | None

    def through_lens(self, picture_HWC: np.ndarray) -> np.ndarray:
        """A source picture as the lens shows it."""
        return picture_HWC if self.remap is None else self.remap(picture_HWC)


class Painter:
    """Paints the pictures of one look in one compiled model.

    Args:
        look: a look with `painted`.
        model: compiled with the look's cameras.
        camera_names: the model's camera of ``top`` and of ``wrist``.

    Raises:
        ConfigError: a folder of plates or cut-outs that cannot be used.
    """

    def __init__(self, look: Look, model: MjModel, camera_names: dict[str, str]) -> None:
        self.look, self.model, self._camera_names = look, model, camera_names
        self.plates = plates.load_plates(look.plates) if look.composite and look.plates else ()
        self._cutouts = patches.load_cutouts(look.patches) if look.clutter == "patches" else {}
        self._views: dict[tuple[str, int, int], View] = {}
        self._backgrounds: dict[tuple[int, int, int], np.ndarray] = {}
        self._appearances: dict[int, Appearance] = {}
        self._boat = set(np.flatnonzero(np.array(model.geom_bodyid) == model.body("boat").id).tolist())
        self._table, self._sun = model.geom("table").id, model.light("key").id
        # Arms, boat, disk and stand-ins are in front; table and floor are behind.
        in_front = np.array(model.geom_bodyid) != 0
        in_front[model.geom("disk").id] = True
        self._in_front = np.concatenate([in_front, np.ones(len(clutter.THINGS), bool)])
        table = model.geom("table")
        low, high = table.pos - table.size, table.pos + table.size
        self._table_m = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))

    def appearance(self, seed: int) -> Appearance:
        """What the episode of an environment seed has drawn for its pictures."""
        if seed not in self._appearances:
            if len(self._appearances) >= MAX_REMEMBERED:
                self._appearances.clear()
            self._appearances[seed] = draw_appearance(self.look, seed, len(self.plates))
        return self._appearances[seed]

    def paint(
        self,
        renderer_of: RendererOf,
        data: MjData,
        camera: str,
        size_px: tuple[int, int],
        *,
        seed: int,
        tick: int,
    ) -> np.ndarray:
        """One picture, uint8 [height, width, 3].

        Args:
            renderer_of: gives the process's renderer of a width and height.
            camera: ``top`` or ``wrist``.
            size_px: width and height.
            seed: environment seed; before the first reset, anything.
            tick: control ticks since reset; keys the noise.
        """
        appearance, tick = self.appearance(max(seed, 0)), max(tick, 0)
        look, view, top = self.look, self._view(camera, *size_px), camera == "top"
        renderer = renderer_of(view.source.width_px, view.source.height_px)
        self._dress(renderer, data, camera, appearance)
        picture = renderer.render().astype(np.float32)
        camera_id = self.model.camera(self._camera_names[camera]).id
        pose = Pose(data.cam_xpos[camera_id].copy(), data.cam_xmat[camera_id].reshape(3, 3).copy())
        layer = patches.table_layer(appearance.things, self._cutouts, view.source, pose) if self._cutouts else None
        casts, composite = top and look.shadow_strength > 0.0, top and look.composite
        front = self._foreground(renderer) if layer is not None or casts or composite else None
        light = None
        if front is not None and casts:
            with _mode(renderer, "depth"):
                depth = renderer.render()
            dark = shadow.contact_shadow(
                depth, front, view.source, pose, sigma_px=look.shadow_px, table_m=self._table_m
            )
            light = (1.0 - look.shadow_strength * dark)[..., None]
        if front is not None and composite:
            out = self._over_plate(view, picture, front, layer, light, size_px, appearance)
        else:
            if front is not None:
                picture = np.where(front[..., None], picture, _behind(picture, layer, light))
            out = self._blur(self._grade(view.through_lens(picture), camera), size_px[1])
        if look.noise_counts:
            out = out + optics.noise(out.shape, look.noise_counts, seed=appearance.seed, tick=tick, camera=camera)
        return optics.to_counts(out)

    def _view(self, camera: str, width_px: int, height_px: int) -> View:
        key = (camera, width_px, height_px)
        if key not in self._views:
            fovy_deg = float(self.model.camera(self._camera_names[camera]).fovy[0])
            if self.look.lens == "none":
                self._views[key] = View(Pinhole(width_px, height_px, lens.focal_px(height_px, fovy_deg)), None)
            else:
                fitted = self.look.lens == "fitted" and camera == "wrist"
                remap = lens_remap(
                    width_px,
                    height_px,
                    lens.lens_fovy_deg(fovy_deg),
                    documented.FITTED_WRIST if fitted else documented.EQUIDISTANT,
                )
                rows = lens.source_size(height_px)
                source = Pinhole(lens.source_size(width_px), rows, lens.focal_px(rows, fovy_deg))
                self._views[key] = View(source, remap)
        return self._views[key]

    def _dress(self, renderer: Renderer, data: MjData, camera: str, appearance: Appearance) -> None:
        """Refill the renderer's scene and put the episode's colours, light and stand-ins into it."""
        renderer.update_scene(data, self._camera_names[camera])
        scene = renderer.scene
        switch_effects_off(scene)
        if appearance.jitter is not None:
            self._tint(scene, appearance.jitter)
        if self.look.clutter == "standins":
            clutter.add_standins(scene, appearance.things, self.model.ngeom)

    def _tint(self, scene: Any, jitter: Jitter) -> None:
        for geom in scene.geoms[: scene.ngeom]:
            if geom.objtype != mujoco.mjtObj.mjOBJ_GEOM:
                continue
            if geom.objid in self._boat:
                geom.rgba[:3] = jitter.boat_rgb
            elif geom.objid == self._table:
                geom.rgba[:3] = np.clip(geom.rgba[:3] * jitter.table_gain, 0.0, 1.0)
        for light in scene.lights[: scene.nlight]:
            if light.headlight:
                light.diffuse[:] = light.diffuse * jitter.fill_gain
            elif light.id == self._sun:
                light.dir[:] = jitter.sun_direction
                light.diffuse[:] = light.diffuse * jitter.sun_factor

    def _foreground(self, renderer: Renderer) -> np.ndarray:
        """bool [rows, columns] of the source picture: what is neither table nor floor nor nothing."""
        with _mode(renderer, "segmentation"):
            ids_HW2 = renderer.render()
        is_geom = ids_HW2[..., 1] == int(mujoco.mjtObj.mjOBJ_GEOM)
        return is_geom & self._in_front[np.where(is_geom, ids_HW2[..., 0], 0)]

    def _over_plate(
        self,
        view: View,
        picture: np.ndarray,
        front: np.ndarray,
        layer: np.ndarray | None,
        light: np.ndarray | None,
        size_px: tuple[int, int],
        appearance: Appearance,
    ) -> np.ndarray:
        """The top camera's foreground over the episode's photograph; cut-outs lie on it, the shadow darkens both."""
        assert appearance.plate is not None
        plate = self.plates[appearance.plate]
        key = (appearance.plate, *size_px)
        if key not in self._backgrounds:
            self._backgrounds[key] = plate.fitted(*size_px)
        background = self._backgrounds[key]

        def developed(rendered: np.ndarray) -> np.ndarray:
            return self._grade(rendered, "top") * plate.gain_3 + plate.bias_3

        if layer is not None:
            seen = view.through_lens(layer)
            alpha = seen[..., 3:]
            colour = developed(seen[..., :3] / np.maximum(alpha, 1e-3))
            background = plates.compose_over(colour, alpha, background)
        if light is not None:
            background = background * view.through_lens(light.astype(np.float32))
        foreground = self._blur(developed(view.through_lens(picture)), size_px[1])
        weight = self._blur(view.through_lens(front[..., None].astype(np.float32)), size_px[1])
        return plates.compose_over(foreground, weight, background)

    def _grade(self, picture: np.ndarray, camera: str) -> np.ndarray:
        return optics.grade(picture, camera) if self.look.grade == "documented" else picture

    def _blur(self, picture: np.ndarray, rows: int) -> np.ndarray:
        return optics.blur(picture, self.look.blur_px * rows / documented.REFERENCE_ROWS)


def _behind(picture: np.ndarray, layer: np.ndarray | None, light: np.ndarray | None) -> np.ndarray:
    """The background of a rendered picture with cut-outs on it, darkened by shadows."""
    if layer is not None:
        picture = layer[..., :3] + picture * (1.0 - layer[..., 3:])
    return picture if light is None else picture * light


@contextmanager
def _mode(renderer: Renderer, name: str) -> Iterator[None]:
    """Segmentation or depth pictures for a while; colour again afterwards, whatever happens."""
    getattr(renderer, f"enable_{name}_rendering")()
    try:
        yield
    finally:
        getattr(renderer, f"disable_{name}_rendering")()
