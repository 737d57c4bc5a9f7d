"""The LeRobot v3.0 dataset format, as far as demonstrations use it: names, features, Arrow schemas, pictures.

In: the size of the pictures. Out: the `features` of `meta/info.json` and the schema of the data files, whose
``huggingface`` metadata makes the `datasets` library see the picture columns as pictures. Neither `lerobot` nor
`datasets` is needed. Pictures are PNG bytes inside the parquet files: lossless, unlike a video.

Writing episodes is `recording` and `merge`, reading a dataset is `reading`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from vla_rl.policy.normalise import JOINTS
from vla_rl.policy.prompt import CAMERAS

VERSION, FPS, ROBOT = "v3.0", 30, "so101_follower"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK, FILE_MB = 1000, 100

STATE, ACTION = "observation.state", "action"
PICTURES = tuple(f"observation.images.{camera}" for camera in CAMERAS)
# Terms of reward v1 (progress, success, tip, strike) and v2 (earned, shoved, success, tip, strike), in cm.
REWARD_TERMS = tuple(f"reward.{term}" for term in ("progress", "earned", "shoved", "success", "tip", "strike"))

# Measured on 112 px pictures (benchmarks/demos.py): level 6 takes twice the time of level 1 and saves a tenth of the
# space; an uncompressed picture takes ten times the space and is encoded hardly faster.
PNG_LEVEL = 1
_SCALARS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
    "next.done": "bool",
    "next.success": "bool",
    "next.reward": "float32",
    **dict.fromkeys(REWARD_TERMS, "float32"),
    "taught": "bool",
    "seed": "int64",
}


def features(image_px: int) -> dict[str, dict[str, Any]]:
    """The `features` of `info.json`: one entry a column of the data files."""
    picture = {"dtype": "image", "shape": [image_px, image_px, 3], "names": ["height", "width", "channels"]}
    joints = {"dtype": "float32", "shape": [len(JOINTS)], "names": [f"{joint}.pos" for joint in JOINTS]}
    scalars = {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _SCALARS.items()}
    return {**{name: picture for name in PICTURES}, STATE: joints, ACTION: joints, **scalars}


def data_schema(columns: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """The Arrow schema of the data files of a dataset with these features, `datasets` metadata included."""
    fields, described = [], {}
    for name, feature in columns.items():
        kind = feature["dtype"]
        if kind == "image":
            fields.append(pa.field(name, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
            described[name] = {"_type": "Image"}
        elif feature["shape"] == [1]:
            fields.append(pa.field(name, _arrow(kind)))
            described[name] = {"dtype": kind, "_type": "Value"}
        else:
            length = feature["shape"][0]
            fields.append(pa.field(name, pa.list_(_arrow(kind), length)))
            described[name] = {"feature": {"dtype": kind, "_type": "Value"}, "length": length, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    return pa.schema(fields, metadata=metadata)


def scalar_columns(schema: pa.Schema) -> list[str]:
    """The columns of one plain value a row: those that dictionaries and statistics of a parquet file pay for."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def encode_png(picture: np.ndarray) -> bytes:
    """PNG bytes of a uint8 [height, width, 3] picture."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def decode_picture(data: bytes) -> np.ndarray:
    """uint8 [height, width, 3] of an encoded picture; the decoder works without Python's lock.

    Raises:
        OSError: these bytes are no picture.
    """
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"))


def joint_rows(values_TJ: np.ndarray) -> pa.Array:
    """float32 [row, joint] as one Arrow column."""
    flat = pa.array(np.ascontiguousarray(values_TJ, dtype=np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values_TJ.shape[1])


def joint_values(column: pa.ChunkedArray | pa.Array, joints: int) -> np.ndarray:
    """The inverse of `joint_rows` for any list column of `joints` numbers a row: float32 [row, joint]."""
    flat = column.combine_chunks().flatten() if isinstance(column, pa.ChunkedArray) else column.flatten()
    return flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(-1, joints)


def _arrow(dtype: str) -> pa.DataType:
    return pa.bool_() if dtype == "bool" else pa.type_for_alias(dtype)
