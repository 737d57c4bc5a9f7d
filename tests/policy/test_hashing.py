"""Digests in pieces and side by side are those of the bytes in one go."""

from __future__ import annotations

import hashlib

import pytest
import torch

from vla_rl.policy import hashing

TENSORS = {
    "matrix": torch.arange(600, dtype=torch.float32).reshape(20, 30),
    "turned": torch.arange(600, dtype=torch.float32).reshape(20, 30).T,
    "rows": torch.arange(600, dtype=torch.float32).reshape(20, 30)[3:7],
    "short": torch.linspace(-3, 3, 77).bfloat16(),
    "one": torch.tensor(1.5),
    "none": torch.zeros(0, 4),
    "counts": torch.arange(9),
}


@pytest.mark.parametrize("piece_bytes", [1, 64, 1000, 2**26])
def test_a_digest_that_is_fed_in_pieces_is_that_of_all_bytes_in_order(piece_bytes, monkeypatch):
    monkeypatch.setattr(hashing, "PIECE_BYTES", piece_bytes)
    found, expected = hashlib.sha256(), hashlib.sha256()
    hashing.feed(found, ((name.encode(), tensor) for name, tensor in TENSORS.items()), torch.float32)
    for name, tensor in TENSORS.items():
        expected.update(name.encode() + tensor.to(torch.float32).contiguous().numpy().tobytes())
    assert found.hexdigest() == expected.hexdigest()


@pytest.mark.parametrize("piece_bytes", [64, 2**26])
def test_a_fingerprint_changes_with_any_bit_of_its_tensor_alone(piece_bytes, monkeypatch):
    monkeypatch.setattr(hashing, "PIECE_BYTES", piece_bytes)
    before = hashing.fingerprints(TENSORS)
    assert hashing.fingerprints({name: tensor.clone() for name, tensor in TENSORS.items()}) == before
    for name, tensor in TENSORS.items():
        for at in {0, tensor.numel() // 2, tensor.numel() - 1} if tensor.numel() else ():
            changed = tensor.clone(memory_format=torch.contiguous_format)
            changed.view(-1).view(torch.uint8)[at * tensor.element_size()] ^= 1
            after = hashing.fingerprints({**TENSORS, name: changed})
            assert {other for other in before if before[other] != after[other]} == {name}


def test_what_goes_wrong_while_a_tensor_is_fetched_is_raised():
    def tensors():
        yield b"first", TENSORS["matrix"]
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        hashing.feed(hashlib.sha256(), tensors(), torch.float32)


def test_files_are_hashed_in_order_and_a_missing_one_is_named(tmp_path):
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 1000 * number)
    paths = [tmp_path / str(number) for number in range(20)]
    assert hashing.file_digests(paths) == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    with pytest.raises(FileNotFoundError, match="99"):
        hashing.file_digests([*paths, tmp_path / "99"])
