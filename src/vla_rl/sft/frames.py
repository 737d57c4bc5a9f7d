"""Pictures of training windows: from PNG bytes in a dataset's files to uint8 frames that a batch can gather.

In: a dataset and the frames at which its windows start. Out: all their pictures decoded once, in threads. On a GPU they
stay in its memory (75 kB a window of two 112 px pictures: 110 k windows are 8 GB). On the CPU they lie in a file
without a name, which goes with the process however it ends, and the kernel keeps in memory what there is room for.

Shapes: N windows, R rows of a batch, C cameras.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from vla_rl.errors import IntegrityError, MachineError, UsageError
from vla_rl.sft import lerobot
from vla_rl.sft.reading import DemoDataset


def picture_side(dataset: DemoDataset) -> int:
    """Side of the first frame's pictures.

    Raises:
        UsageError: they are not square or not alike.
        IntegrityError: they are not in the files.
    """
    with pq.ParquetFile(dataset.files[0]) as file:
        row = next(file.iter_batches(batch_size=1, columns=list(lerobot.PICTURES))).to_pylist()[0]
    try:
        shapes = {name: lerobot.decode_picture(row[name]["bytes"]).shape for name in lerobot.PICTURES}
    except (OSError, TypeError) as error:
        what = f"the pictures are not in the data files: {error}"
        raise IntegrityError(what, where=str(dataset.files[0]), remedy="store them as embedded images") from error
    sides = {side for shape in shapes.values() for side in shape[:2]}
    if len(sides) != 1:
        sizes = ", ".join(f"{name} {height} x {width}" for name, (height, width, _) in shapes.items())
        raise UsageError(
            f"pictures must be square and of one size, these are: {sizes}",
            where=str(dataset.root),
            remedy="crop or resize them when the dataset is recorded",
        )
    return sides.pop()


def decode_windows(
    dataset: DemoDataset, frame_N: np.ndarray, *, image_px: int, threads: int, taken: Callable[[bytes], None]
) -> Iterator[np.ndarray]:
    """The pictures of all windows in order, in blocks uint8 [n, C, px, px, 3] (one row group of a file at a time).

    Args:
        frame_N: int64 [N], ascending, frames of the dataset.
        image_px: side of its pictures.
        threads: decoding threads.
        taken: given the bytes of every picture, in order.

    Raises:
        IntegrityError: a picture is missing, damaged or of another size.
    """
    shape = (image_px, image_px, 3)

    def decode(data: bytes) -> np.ndarray:
        picture = lerobot.decode_picture(data)
        if picture.shape != shape:
            raise ValueError(f"a picture of {picture.shape[0]} x {picture.shape[1]} among those of {shape[0]}")
        return picture

    with ThreadPoolExecutor(threads) as pool:
        for encoded in _encoded_windows(dataset, frame_N):
            try:
                for data in encoded:
                    taken(data)
                pictures = list(pool.map(decode, encoded))
            except (OSError, ValueError, TypeError) as error:
                what = f"a picture cannot be decoded: {error}"
                raise IntegrityError(what, where=str(dataset.root), remedy="record or fetch it again") from error
            yield np.stack(pictures).reshape(-1, len(lerobot.PICTURES), *shape)


def _encoded_windows(dataset: DemoDataset, frame_N: np.ndarray) -> Iterator[list[bytes]]:
    """Bytes of the windows' pictures per row group: window by window, camera by camera."""
    first = 0
    for path in dataset.files:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                begin, end = np.searchsorted(frame_N, (first, first + rows))
                if end > begin:
                    table = file.read_row_group(group, columns=list(lerobot.PICTURES))
                    table = table.take(frame_N[begin:end] - first)
                    columns = [table[name].combine_chunks().field("bytes").to_pylist() for name in lerobot.PICTURES]
                    yield [data for window in zip(*columns, strict=True) for data in window]
                first += rows


class ResidentFrames:
    """All frames in one uint8 tensor [N, C, px, px, 3] on a device."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.frames = torch.empty(shape, dtype=torch.uint8, device=device)

    def fill(self, first: int, block: np.ndarray) -> None:
        """Put a block [n, C, px, px, 3] at window `first`."""
        self.frames[first : first + len(block)] = torch.from_numpy(block).to(self.frames.device)

    def gather(self, row_R: np.ndarray) -> Tensor:
        """uint8 [R, C, px, px, 3]."""
        return self.frames[torch.from_numpy(row_R).to(self.frames.device)]


class MappedFrames:
    """All frames in a file that has no name and goes with the process, mapped into memory.

    Args:
        shape: [N, C, px, px, 3].
        directory: a directory on a disk with room for that many bytes.

    Raises:
        MachineError: the disk has no room.
    """

    def __init__(self, shape: tuple[int, ...], directory: Path) -> None:
        needed, free = int(np.prod(shape)), shutil.disk_usage(directory).free
        if needed > free:
            raise MachineError(
                f"the decoded pictures take {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free",
                where=str(directory),
                remedy="free space, choose a run.dir on another disk, or raise sft.frame_stride",
            )
        self.frames = np.memmap(tempfile.TemporaryFile(dir=directory), np.uint8, mode="w+", shape=shape)

    def fill(self, first: int, block: np.ndarray) -> None:
        """Put a block [n, C, px, px, 3] at window `first`."""
        self.frames[first : first + len(block)] = block

    def gather(self, row_R: np.ndarray) -> Tensor:
        """uint8 [R, C, px, px, 3]."""
        return torch.from_numpy(self.frames[row_R])
