"""Frames from a worker to its parent: through shared memory, or pickled into the pipe as before.

Run with `python benchmarks/transport.py`. An environment of no work hands out two pictures a step; a pool of one worker
moves it. The two ways take turns; what is printed is the median wall time of a step and its ratio over pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from vla_rl.rollout.pool import ProcessPool

SIZES = {"112 x 112": 112, "224 x 224": 224, "554 x 554 (as many as 640 x 480)": 554}


class Pictures:
    """Two pictures of noise, and none of anything else; tells its picture size or does not."""

    def __init__(self, *, px: int, tells: bool) -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1, 6))
        self.max_replans, self.image_px = 1, px if tells else None
        self._pictures = np.random.default_rng(0).integers(0, 256, (2, px, px, 3), dtype=np.uint8)

    def _look(self) -> dict[str, np.ndarray]:
        return {"top": self._pictures[0], "wrist": self._pictures[1], "state": np.zeros(6)}

    def reset(self, *, seed: int) -> Any:
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), 0.0, False, False, {}

    def metrics(self) -> Any:
        return SimpleNamespace(as_dict=dict)

    def close(self) -> None:
        pass


def compare(px: int, repeats: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step of both ways, and the ratio of shared to pickled."""
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                ProcessPool(
                    workers=1,
                    groups=1,
                    timeout_s=60.0,
                    env_spec={"_target_": "transport.Pictures", "px": px, "tells": tells},
                    plugins=("transport",),
                )
            )
            for tells in (True, False)
        ]
        action = np.zeros((1, 6))
        pairs = []
        for pool in pools:
            pool.reset([(0, 0)])
        for _ in range(repeats):
            pair = []
            for pool in pools:
                started = time.perf_counter()
                for _ in range(steps):
                    pool.step([(0, action)])
                pair.append((time.perf_counter() - started) / steps)
            pairs.append(pair)
    return {
        "shared_ms": 1e3 * statistics.median(pair[0] for pair in pairs),
        "pickled_ms": 1e3 * statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {size: compare(px, options.repeats, options.steps) for size, px in SIZES.items()}
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'two pictures of':<36}{'shared ms':>10}{'pickled ms':>12}{'ratio':>8}")
    for size, row in rows.items():
        print(f"{size:<36}{row['shared_ms']:>10.2f}{row['pickled_ms']:>12.2f}{row['ratio']:>8.2f}")


if __name__ == "__main__":
    main()
