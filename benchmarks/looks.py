"""Every look side by side, and what a picture in it costs.

``python benchmarks/looks.py`` prints milliseconds a picture and the ratio to the plain look, all in one run; with
``--sheet docs/looks.png`` it draws the golden contact sheet: one state, each look of `conf/sim/look`, both cameras.
No photograph of a real table ships, so the composite's plates are drawn here, and the sheet says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vla_rl.config.compose import compose, options
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS

GROUP = "sim/look"
# This seed's episode has all of the clutter; the pose shows the wrist camera the boat.
SEED, POSE_DEG = 326, (4.0, -28.0, 22.0, 84.0, -20.0, 40.0)
SHEET_PX, COLUMNS, LABEL_PX = 168, 5, 14


def draw_plates(folder: Path, count: int = 2) -> None:
    """Write stand-ins for photographs of an empty table: planks in two kinds of light, 640 x 480."""
    lights = {}
    for k in range(count):
        rng = np.random.default_rng(k)
        columns = np.arange(640)
        planks = 14.0 * ((columns // 64) % 3) - 8.0 * (columns % 64 < 2)
        planks = planks + rng.normal(0.0, 3.0, (480, 640)).cumsum(0) / 12  # grain along the planks
        base = np.array([(168.0, 140.0, 110.0), (150.0, 138.0, 124.0)][k % 2])
        picture = np.clip(base + planks[..., None], 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(folder / f"plate{k}.png")
        lights[f"plate{k}.png"] = {"gain": [1.0, 1.0 - 0.03 * k, 1.0 - 0.06 * k], "bias": [0.0, 1.0 * k, 3.0 * k]}
    (folder / "plates.json").write_text(json.dumps(lights))


def environments(plates: Path, image_px: int) -> dict[str, BoatToDisk]:
    """One environment per option of the group, the plain one first, all in the same state."""
    names = sorted(options(GROUP), key=lambda name: (name != "plain", name))
    envs = {}
    for name in names:
        extra = [f"sim.look.plates={plates}"] if name == "composite" else []
        settings = dict(compose("demos", [f"{GROUP}={name}", f"sim.image_px={image_px}", *extra]).tree["sim"])
        del settings["_target_"]
        env = envs[name] = BoatToDisk(**settings)
        env.begin(SEED)
        for _ in range(45):
            env.tick(np.array(POSE_DEG))
    return envs


def contact_sheet(envs: dict[str, BoatToDisk], image_px: int = SHEET_PX) -> Image.Image:
    """All looks with their names, both cameras each."""
    rows = -(-len(envs) // COLUMNS)
    cell_w, cell_h = 2 * image_px + 4, image_px + LABEL_PX + 4
    sheet = Image.new("RGB", (COLUMNS * cell_w, rows * cell_h), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for i, (name, env) in enumerate(envs.items()):
        x, y = (i % COLUMNS) * cell_w, (i // COLUMNS) * cell_h
        for k, camera in enumerate(CAMERAS):
            note = " (drawn plate)" if name == "composite" and camera == "top" else ""
            draw.text((x + 4 + k * image_px, y + 1), f"{name} / {camera}{note}", fill=(0, 0, 0))
            sheet.paste(Image.fromarray(env.get_frame(camera, image_px, image_px)), (x + k * image_px, y + LABEL_PX))
    return sheet


def pairwise_distance(envs: dict[str, BoatToDisk], image_px: int) -> dict[tuple[str, str], float]:
    """Mean absolute difference in counts between the pictures of each two looks, over both cameras."""
    seen = {
        name: np.stack([env.get_frame(camera, image_px, image_px) for camera in CAMERAS]).astype(np.float64)
        for name, env in envs.items()
    }
    names = list(seen)
    return {(a, b): float(np.abs(seen[a] - seen[b]).mean()) for i, a in enumerate(names) for b in names[i + 1 :]}


def cost(envs: dict[str, BoatToDisk], image_px: int, repeats: int) -> list[dict[str, Any]]:
    """Median milliseconds a picture, looks taken in turn so that a slow moment of the machine hits all of them.

    Processor time of all threads stands beside wall time: on a shared machine it is the steadier of the two.
    """
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    times: dict[tuple[str, str, str], list[float]] = {
        (name, camera, clock): [] for name in envs for camera in CAMERAS for clock in clocks
    }
    for repeat in range(repeats + 1):
        for name, env in envs.items():
            for camera in CAMERAS:
                started = {clock: now() for clock, now in clocks.items()}
                env.get_frame(camera, image_px, image_px)
                for clock, now in clocks.items():
                    if repeat:  # the first round makes tables and renderers
                        times[name, camera, clock].append(1e3 * (now() - started[clock]))
    medians = {key: statistics.median(values) for key, values in times.items()}
    rows = []
    for name in envs:
        row: dict[str, Any] = {"look": name}
        for clock in clocks:
            row |= {f"{camera}_{clock}_ms": round(medians[name, camera, clock], 1) for camera in CAMERAS}
            both, plain = (sum(medians[look, camera, clock] for camera in CAMERAS) for look in (name, "plain"))
            row[f"{clock}_ratio"] = round(both / plain, 2)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheet", type=Path, help="write the contact sheet here and measure nothing")
    parser.add_argument("--image-px", type=int, default=112, help="picture size of the measurement")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw_plates(Path(folder))
        envs = environments(Path(folder), arguments.image_px)
        if arguments.sheet:
            contact_sheet(envs).save(arguments.sheet, optimize=True)
            print(f"{arguments.sheet}: {arguments.sheet.stat().st_size / 1e3:.0f} kB")
            return
        rows = cost(envs, arguments.image_px, arguments.repeats)
        nearest = min(pairwise_distance(envs, arguments.image_px).items(), key=lambda item: item[1])
    if arguments.json:
        print(json.dumps({"image_px": arguments.image_px, "looks": rows, "nearest_pair": nearest}))
        return
    print(f"{arguments.image_px} px; ms a picture (top, wrist), ratio to plain")
    print(f"{'look':<20}{'wall':>16}{'ratio':>8}{'processor':>18}{'ratio':>8}")
    for row in rows:
        cells = [
            f"{row[f'top_{clock}_ms']:>9}{row[f'wrist_{clock}_ms']:>8}{row[f'{clock}_ratio']:>8}"
            for clock in ("wall", "cpu")
        ]
        print(f"{row['look']:<20}" + " ".join(cells))
    print(f"nearest two looks: {nearest[0][0]} and {nearest[0][1]}, {nearest[1]:.2f} counts apart")


if __name__ == "__main__":
    main()
