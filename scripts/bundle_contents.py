"""What the offline bundle leaves to the machine, leaves out, builds itself and prunes: each with its reason.

Constants only. `gpu_bundle.py` builds by them, the manifest carries them, and the bundle's installer checks a machine
against `ASSUMED` and explains `LEFT_OUT`.
"""

from __future__ import annotations

# What any machine for training has, or what is compiled and too large to carry. The installer checks all of them.
ASSUMED = {
    "torch": ">=2.11",
    "numpy": ">=2",
    "scipy": ">=1.14",
    "pyarrow": ">=17",
    "pillow": ">=11",
    "tokenizers": ">=0.23.1,<0.24",
    "safetensors": ">=0.8",
    "huggingface-hub": ">=1.31,<3",
    "pyyaml": ">=6",
    "packaging": ">=20",
    "tqdm": ">=4.60",
    "typer": "",
    "typing-extensions": ">=4.12",
    "rich": ">=13",
}

# Requirements that headless use can do without, and what that costs.
LEFT_OUT = {
    "av": "films of episodes are animated WebP instead of MP4",
    "wandb": "logger=wandb is not available",
    "manifold3d": "the simplified meshes are in the package",
    "trimesh": "the simplified meshes are in the package",
    "absl-py": "only MuJoCo's viewer uses it",
    "etils": "only MuJoCo's viewer uses it",
    "websockets": "only MuJoCo's viewer uses it",
    "glfw": "only windows need it",
    "tyro": "so101-nexus is used as a source of files, not imported",
}

# Published as a source archive only.
BUILT_HERE = ("antlr4-python3-runtime",)

# Distribution (as its wheel is named, lower case) -> members that are dropped.
PRUNED = {
    # Experiments, C headers, examples, the windowed viewer and the Filament renderer.
    "mujoco": r"^mujoco/(experimental/|_render_filament|_simulate|include/|sample/|mjpython/|.*filament)",
    # Robots and objects other than the Menagerie SO-101.
    "so101_nexus": r"^so101_nexus/assets/(?!SO101_menagerie/)",
    # Windows libraries.
    "pyopengl": r"^OpenGL/DLLS/",
    # Sources that modeling files were generated from, and converters of published checkpoints: never imported.
    "transformers": r"^transformers/models/[^/]+/(modular_|convert_)[^/]*\.py$",
}
