"""The remaining-budget grammar: hand-computed masks, every masked stream decodes, one mask for trainer and sampler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_support import released_artifact

from vla_rl.errors import ConfigError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.grammar import Grammar, legal_at, legal_next

SMALL = Grammar(np.array([1, 2, 3, 0]), total=4, wider_V=np.zeros(4, dtype=bool))


def random_stream(grammar: Grammar, rng: np.random.Generator) -> np.ndarray:
    left, bins = grammar.total, []
    while left:
        bins.append(rng.choice(np.flatnonzero((grammar.lengths_V > 0) & (grammar.lengths_V <= left))))
        left -= grammar.lengths_V[bins[-1]]
    return np.array(bins)


def test_masks_of_a_short_stream_are_as_computed_by_hand():
    assert SMALL.masks(np.array([1, 0, 0])).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert SMALL.packed_masks(np.array([2, 0])).tolist() == [[0b11100000], [0b10000000]]


@pytest.mark.parametrize("bins", [[1], [1, 1, 0], [3, 1, 1], [2, 1], []])
def test_incomplete_overlong_and_lengthless_streams_are_refused(bins: list[int]):
    with pytest.raises(ConfigError):
        SMALL.masks(np.array(bins, dtype=np.int64))


def test_a_codec_without_unit_bins_is_refused():
    with pytest.raises(ConfigError):
        Grammar(np.array([2, 3]), total=4, wider_V=np.zeros(2, dtype=bool))


@pytest.mark.parametrize(
    ("spelling", "bins"),
    [
        ("plain", "reachable"),
        pytest.param("released", "reachable", marks=pytest.mark.slow),
        ("released", "documented"),
    ],
)
def test_two_thousand_random_masked_streams_expand_to_exactly_the_chunk(
    codec: FastCodec, tmp_path: Path, spelling: str, bins: str
):
    if spelling == "released":
        codec = FastCodec.load(released_artifact(tmp_path), horizon=30, dim=6)
    grammar, rng = Grammar.of(codec, bins), np.random.default_rng(1)
    streams = [random_stream(grammar, rng) for _ in range(2000)]
    assert {int(codec.lengths_V[stream].sum()) for stream in streams} == {30 * 6}
    assert {codec.fault(stream) for stream in streams} == {None}
    chunks = codec.decode(streams)
    assert chunks.shape == (2000, 30, 6) and np.isfinite(chunks).all()
    used = np.unique(np.concatenate(streams))
    assert codec.reachable_V[used].all() == (bins == "reachable")


def test_the_wider_grammar_adds_just_the_bins_that_no_encoder_emits(tmp_path: Path):
    codec = FastCodec.load(released_artifact(tmp_path), horizon=30, dim=6)
    narrow, wide = Grammar.of(codec, "reachable"), Grammar.of(codec, "documented")
    assert np.flatnonzero(wide.wider_V).tolist() == list(range(33)) and not narrow.wider_V.any()
    assert np.array_equal(wide.lengths_V, codec.lengths_V)
    assert np.array_equal(narrow.lengths_V, np.where(wide.wider_V, 0, wide.lengths_V))
    with pytest.raises(ConfigError):
        narrow.masks(np.array([32] * 180))
    assert wide.masks(np.array([32] * 180)).shape == (180, 2048)


def test_torch_masks_of_padded_streams_equal_the_numpy_masks(codec: FastCodec):
    grammar, rng = Grammar.of(codec, "documented"), np.random.default_rng(2)
    streams = [random_stream(grammar, rng) for _ in range(20)]
    padded = np.zeros((20, max(map(len, streams))), dtype=np.int64)
    for row, stream in zip(padded, streams, strict=True):
        row[: len(stream)] = stream
    legal = legal_at(torch.from_numpy(codec.lengths_V), torch.from_numpy(padded), 180).numpy()
    for row, stream in zip(legal, streams, strict=True):
        assert np.array_equal(row[: len(stream)], grammar.masks(stream)) and not row[len(stream) :].any()


def test_mask_is_a_function_of_the_prefix_alone(codec: FastCodec):
    grammar, rng = Grammar.of(codec, "documented"), np.random.default_rng(3)
    stream = random_stream(grammar, rng)
    half = len(stream) // 2
    left = 180 - int(codec.lengths_V[stream[:half]].sum())
    rest = random_stream(replace(grammar, total=left), rng)
    other = np.concatenate([stream[:half], rest])
    assert np.array_equal(grammar.masks(stream)[: half + 1], grammar.masks(other)[: half + 1])
    assert np.array_equal(
        legal_next(torch.from_numpy(codec.lengths_V), torch.tensor([left]))[0].numpy(), grammar.masks(other)[half]
    )
