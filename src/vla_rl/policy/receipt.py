"""The receipt of an export: what was written, with digests, and where it came from.

In: a written directory and facts about its source. Out: `receipt.json`, and the check of a directory against it. Every
tensor has a digest of its own, so that weights can be compared across shardings; every other file has one too. The
receipt says what it was made from; who vouches for it is not its business (it is not signed).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl import __version__
from vla_rl.policy.layout import EXPERT, ROTARY
from vla_rl.policy.refusals import ReceiptMismatch
from vla_rl.policy.weightfiles import WeightFiles, tensor_sha256

FILE_NAME = "receipt.json"
VERSION = 1


@dataclass(frozen=True)
class Receipt:
    """What an export wrote.

    Attributes:
        version: of this format.
        written: UTC time; `vla_rl`: version of the package.
        source: where the weights come from (run, step, manifest and configuration digests, digest of the policy).
        changed: names of tensors that differ from the origin's; `carried`: expert and rotary tensors, copied as stored.
        tensors: name -> file, format, shape, SHA-256 of the bytes.
        files: relative path -> SHA-256, for every file but weights and the receipt.
    """

    version: int
    written: str
    vla_rl: str
    source: dict[str, Any]
    changed: list[str]
    carried: list[str]
    tensors: dict[str, dict[str, Any]]
    files: dict[str, str]

    @classmethod
    def of(cls, directory: Path, *, changed: Sequence[str], source: Mapping[str, Any]) -> Receipt:
        """Read a written directory back and take its digests."""
        names = list(WeightFiles.open(directory).entries)
        return cls(
            version=VERSION,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            vla_rl=__version__,
            source=dict(source),
            changed=list(changed),
            carried=sorted(name for name in names if EXPERT.match(name) or ROTARY.match(name)),
            tensors=dict(_tensors(directory)),
            files=dict(_files(directory)),
        )


def write_receipt(directory: Path, receipt: Receipt) -> None:
    """Write `receipt.json`, with a digest of its own content."""
    body = json.dumps(asdict(receipt), sort_keys=True, allow_nan=False)
    own = hashlib.sha256(body.encode()).hexdigest()
    (directory / FILE_NAME).write_text(json.dumps({"sha256": own, "body": json.loads(body)}, indent=1) + "\n")


def read_receipt(directory: Path) -> Receipt | None:
    """The receipt of a directory, None if it has none.

    Raises:
        ReceiptMismatch: it was edited, is damaged, or of a version from the future.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return None
    try:
        outer = json.loads(path.read_text())
        body, own = outer["body"], outer["sha256"]
        if body["version"] != VERSION:
            raise ReceiptMismatch(f"the receipt has version {body['version']!r}, known is {VERSION}", where=str(path))
        if hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() != own:
            raise ReceiptMismatch("the receipt was edited", where=str(path))
        return Receipt(**body)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReceiptMismatch(f"the receipt cannot be read: {error!r}", where=str(path)) from error


def check_receipt(directory: Path, receipt: Receipt) -> None:
    """Compare every tensor and file with the receipt.

    Raises:
        ReceiptMismatch: naming the first that differs, is missing or was added.
    """
    for kind, found, stated in (
        ("tensor", dict(_tensors(directory)), receipt.tensors),
        ("file", dict(_files(directory)), receipt.files),
    ):
        wrong = sorted(n for n in found.keys() | stated.keys() if found.get(n) != stated.get(n))
        if wrong:
            name = wrong[0]
            state = "was added" if name not in stated else "is missing" if name not in found else "differs"
            raise ReceiptMismatch(
                f"{len(wrong)} {kind}s are not those of the receipt; {name} {state}",
                where=str(directory),
                remedy="export again; a checkpoint that is edited by hand loses its receipt",
            )


def _tensors(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    files = WeightFiles.open(directory)
    for name, tensor in files.tensors(files.entries):
        entry = files.entries[name]
        yield name, {
            "file": entry.file, "dtype": entry.dtype, "shape": list(entry.shape), "sha256": tensor_sha256(tensor),
        }  # fmt: skip


def _files(directory: Path) -> Iterator[tuple[str, str]]:
    weights = {directory / shard for shard in WeightFiles.open(directory).shards}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path not in weights and path != directory / FILE_NAME:
            yield path.relative_to(directory).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
