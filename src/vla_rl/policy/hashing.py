"""SHA-256 of large tensors and files: without copies of a whole tensor, and on several cores where parts stand alone.

In: tensors on any device, or paths. Out: digests. A tensor is brought to the host in pieces of `PIECE_BYTES`. hashlib
lets other threads run while it hashes, so one digest is fed with the next piece already under way, and digests that do
not depend on each other are taken side by side. What a digest that is written down covers, and in which order, is its
owner's business (`VlaPolicy.digest`, `receipt`, `rl.checkpoint`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 64 * 2**20


def feed(digest: Any, tensors: Iterable[tuple[bytes, Tensor]], dtype: torch.dtype) -> None:
    """Update a digest with what stands before each tensor and its bytes in row-major order, as numbers of `dtype`."""
    for before, tensor in tensors:
        digest.update(before)
        for piece in _fetched(_pieces(tensor), dtype):
            digest.update(piece.view(torch.uint8).numpy())


def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """By name, a digest of the digests of a tensor's pieces: equal for equal bytes, for comparisons in memory only."""
    pieces = [(name, piece) for name, tensor in tensors.items() for piece in _pieces(tensor)]
    whole = {name: hashlib.sha256() for name in tensors}
    for (name, _), part in zip(pieces, _side_by_side(_piece_sha256, [piece for _, piece in pieces]), strict=True):
        whole[name].update(part)
    return {name: digest.hexdigest() for name, digest in whole.items()}


def file_digests(paths: Iterable[Path]) -> list[str]:
    """SHA-256 of files, in order.

    Raises:
        OSError: one cannot be read.
    """
    return _side_by_side(_file_sha256, list(paths))


def _fetched(pieces: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """Pieces on the host as numbers of `dtype`, of several the next one already under way."""
    if len(pieces) < 2:
        yield from (piece.to("cpu", dtype) for piece in pieces)
        return
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(pieces[0].to, "cpu", dtype)
        for following in [*pieces[1:], None]:
            piece = coming.result()
            if following is not None:
                coming = thread.submit(following.to, "cpu", dtype)
            yield piece


def _side_by_side[T, R](hashed: Callable[[T], R], parts: list[T]) -> list[R]:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as threads:
        return list(threads.map(hashed, parts))


def _piece_sha256(piece: Tensor) -> bytes:
    return hashlib.sha256(piece.cpu().view(torch.uint8).numpy()).digest()


def _file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """In one row each; none of a tensor without numbers."""
    flat = tensor.detach().reshape(-1)
    return flat.split(max(1, PIECE_BYTES // tensor.element_size())) if flat.numel() else ()
