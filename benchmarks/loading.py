"""What loading a released-layout checkpoint costs: memory against the network's size, time against reading the files.

Run with `python benchmarks/loading.py [--gib 1.0] [--json]`. A network of about that size (float32) is written under
the released names, in shards, and loaded in float32 and bfloat16, each in a process of its own. Memory is the peak of
anonymous pages above what the process held before (pages that merely map a file can be dropped by the kernel at any
time); the ceiling of time is one pass over the bytes of the files. Read the ratios: machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from vla_rl.policy.layout import native_config, stored_tensors
from vla_rl.policy.released import Opened, check_weights, load_network

WIDTH, LAYERS, SHARDS = 1024, 8, 4


def config(gib: float) -> dict[str, Any]:
    """`config.json` of a release whose vocabulary makes up for the wanted size."""
    layers = LAYERS * (WIDTH * 1536 + WIDTH * WIDTH + 3 * WIDTH * 4 * WIDTH)
    rows = max(1024, int((gib * 2**30 / 4 - layers) / (2 * WIDTH)) // 64 * 64)
    return {
        "model_type": "molmoact2",
        "text_config": {
            "hidden_size": WIDTH, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
            "vocab_size": rows, "additional_vocab_size": 128, "qkv_bias": False, "num_hidden_layers": LAYERS,
            "intermediate_size": 4 * WIDTH, "rope_theta": 5e6, "qk_norm_type": "qwen3", "layer_norm_eps": 1e-6,
        },
        "vit_config": {
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 32, "image_default_input_size": [42, 42], "image_num_pos": 9,
        },
        "adapter_config": {
            "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
            "vit_layers": [-2, -3], "intermediate_size": 96, "text_hidden_size": WIDTH,
        },
    }  # fmt: skip


def write(directory: Path, gib: float) -> None:
    """Shards of random numbers under the released names."""
    from safetensors.torch import save_file
    from transformers import Molmo2ForConditionalGeneration

    raw = config(gib)
    (directory / "config.json").write_text(json.dumps(raw))
    with torch.device("meta"):
        model = Molmo2ForConditionalGeneration(native_config(raw))
    shapes, where = {n: t.shape for n, t in stored_tensors(model)}, {}
    for i in range(SHARDS):
        file = f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = {name: torch.randn(shapes[name]) * 0.02 for name in sorted(shapes)[i::SHARDS]}
        save_file(part, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def load(directory: Path, dtype: torch.dtype) -> dict[str, float]:
    """Load once; peak memory over the network's size, and wall time over one pass over the files."""
    import transformers.models.molmo2.modeling_molmo2  # noqa: F401  (imported before the clock starts)

    torch.set_num_threads(1)
    files = sorted(directory.glob("*.safetensors"))
    started = time.perf_counter()
    for path in files:
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
    read_s, before, peak, done = time.perf_counter() - started, anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    opened = Opened.of(directory)
    check_weights(opened)
    checked_s = time.perf_counter() - started
    model = load_network(opened, dtype)
    loaded_s = time.perf_counter() - started
    done.set()
    watcher.join()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    return {
        "network_gib": size / 2**30, "largest_tensor_gib": largest / 2**30, "peak_over_size": (peak[0] - before) / size,
        "checks_s": checked_s, "load_s": loaded_s, "load_over_read": loaded_s / read_s,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the network in float32")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--load", nargs=2, metavar=("DIR", "DTYPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(Path(options.load[0]), getattr(torch, options.load[1]))))
        return
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), options.gib)
        results = {}
        for dtype in ("float32", "bfloat16"):
            command = [sys.executable, __file__, "--load", name, dtype]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[dtype] = json.loads(done.stdout.splitlines()[-1])
    if options.json:
        print(json.dumps(results))
        return
    for dtype, r in results.items():
        print(
            f"{dtype:<9} network {r['network_gib']:.2f} GiB, peak memory {r['peak_over_size']:.2f}x of it, "
            f"checks {r['checks_s']:.1f} s, loading {r['load_over_read']:.1f}x one read of the files"
        )


if __name__ == "__main__":
    main()
