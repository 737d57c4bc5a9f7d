"""Keyed noise: the documented recipe word for word, every part of a key, standard Gumbel, equal words everywhere."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vla_rl.errors import ConfigError
from vla_rl.policy.noise import KINDS, counter_words, documented_stream, gumbel_noise, sample_stream

WIDTH, START, VOCABULARY = 48, 30, 200
KEY = (7, 3, 300, 2)  # run seed, draw, environment seed, replan
WORDS = st.integers(-(2**63), 2**63 - 1)


def noise(kind: str, keys, tokens: int, *, width: int = WIDTH) -> np.ndarray:
    """Noise of the first tokens, [token, row, width]."""
    draw = gumbel_noise(kind, keys, width=width, block_start=START, vocabulary=VOCABULARY, device="cpu")
    return torch.stack([draw() for _ in range(tokens)]).numpy()


def test_the_documented_stream_is_built_of_the_documented_words():
    # blake2b over "sim/eval100/draw03", 300 and 2, separated by 0x1F; four little-endian words after the domain.
    digest = hashlib.blake2b(b"sim/eval100/draw03\x1f300\x1f2", digest_size=16).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    sequence = np.random.SeedSequence([int.from_bytes(b"ARSD", "big"), 7, 0, *words])
    expected = np.random.Generator(np.random.PCG64(sequence)).standard_exponential(9, dtype=np.float32)
    assert np.array_equal(documented_stream(*KEY).standard_exponential(9, dtype=np.float32), expected)


def test_draw_0_has_the_plain_repo_id_and_others_two_digits():
    for draw, repo_id in ((0, "sim/eval100"), (1, "sim/eval100/draw01"), (12, "sim/eval100/draw12")):
        ours, named = documented_stream(0, draw, 42, 5), sample_stream(0, repo_id, 42, 5, 0)
        assert np.array_equal(ours.standard_normal(8), named.standard_normal(8))


def test_each_of_the_five_components_of_the_documented_key_changes_the_stream():
    base = (0, "repo/x", 3, 17, 2)
    others = [(1, "repo/x", 3, 17, 2), (0, "repo/y", 3, 17, 2), (0, "repo/x", 4, 17, 2), (0, "repo/x", 3, 18, 2),
              (0, "repo/x", 3, 17, 3)]  # fmt: skip
    heads = [sample_stream(*key).standard_normal(8) for key in (base, *others)]
    assert all(not np.array_equal(a, b) for a, b in combinations(heads, 2))
    # Without the domain constant it is the flow head's stream.
    digest = hashlib.blake2b(b"repo/x\x1f3\x1f17", digest_size=16).digest()
    flow = np.random.SeedSequence([0, 2, *(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))])
    assert not np.array_equal(np.random.Generator(np.random.PCG64(flow)).standard_normal(8), heads[0])


@pytest.mark.parametrize(
    ("kind", "width", "column"), [("documented", VOCABULARY, START), ("documented_block", WIDTH, 0)]
)
def test_documented_tokens_consume_one_vector_each_and_use_the_block_s_columns(kind: str, width: int, column: int):
    generator = documented_stream(*KEY)
    waiting = np.stack([generator.standard_exponential(width, dtype=np.float32) for _ in range(5)])
    gumbel = -np.log(np.maximum(waiting, np.finfo(np.float32).tiny).astype(np.float64))
    assert np.array_equal(noise(kind, [KEY], 5)[:, 0], gumbel[:, column : column + WIDTH].astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_every_part_of_the_key_changes_every_kind_of_noise(kind: str, part: int):
    other = tuple(value + (i == part) for i, value in enumerate(KEY))
    a, b = noise(kind, [KEY, other], 3).swapaxes(0, 1)
    assert (a != b).mean() > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_s_noise_does_not_depend_on_its_batch_mates_or_their_order(kind: str):
    others = [(7, draw, 301, 0) for draw in range(3)]
    alone, first, last = (
        noise(kind, keys, 400)[:, i] for keys, i in (([KEY], 0), ([KEY, *others], 0), ([*others, KEY], 3))
    )
    assert np.array_equal(alone, first) and np.array_equal(alone, last) and alone.dtype == np.float32
    assert len(np.unique(alone)) > 0.99 * alone.size  # blocks do not repeat


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_standard_gumbel_and_independent_across_rows_tokens_and_bins(kind: str):
    drawn = noise(kind, [(1, draw, 300, 0) for draw in range(4)], 250).astype(np.float64)
    assert stats.kstest(drawn.ravel(), "gumbel_r").pvalue > 1e-3 and np.isfinite(drawn).all()
    for a, b in ((drawn[:, 0], drawn[:, 1]), (drawn[:-1], drawn[1:]), (drawn[..., :-1], drawn[..., 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)


def test_the_four_kinds_are_different_streams():
    assert all(not np.array_equal(*(noise(kind, [KEY], 2) for kind in pair)) for pair in combinations(KINDS, 2))


def mixed(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


@settings(max_examples=50, deadline=None)
@given(first=WORDS, second=WORDS, counter=st.integers(0, 2**40))
def test_device_words_are_those_of_unsigned_64_bit_arithmetic(first: int, second: int, counter: int):
    word = int(counter_words(torch.tensor([[first, second]]), torch.tensor([counter]))[0, 0]) % 2**64
    assert word == mixed(mixed((first + counter * 0x9E3779B97F4A7C15) % 2**64) ^ second % 2**64)


def test_the_mixer_is_splitmix64_by_its_published_first_numbers():
    # Seed 1234567 of the reference implementation gives these; its state is advanced before each number.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [mixed((1234567 + n * 0x9E3779B97F4A7C15) % 2**64) for n in (1, 2, 3)] == published


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="device"):
        noise("sobol", [KEY], 1)
