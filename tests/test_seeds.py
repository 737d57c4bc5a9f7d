"""Seed text, seed bands and named random streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.errors import ConfigError
from vla_rl.seeds import (
    BANDS,
    BURNED,
    burned_seeds,
    check_disjoint,
    check_fresh,
    check_use,
    format_seeds,
    parse_seeds,
    stream,
)


def test_ranges_are_inclusive_and_order_is_kept():
    assert parse_seeds("0-3,10,5-6") == (0, 1, 2, 3, 10, 5, 6)
    assert parse_seeds(300) == (300,)


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-2", "1,1", "1-3,2", "1;2", "1.5", "²", "1-²"])
def test_anything_else_is_refused_with_the_text_named(text):
    with pytest.raises(ConfigError) as error:
        parse_seeds(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["0-99999999999", "2147483648", "0-1000000", "0-999999,1000000"])
def test_a_mistyped_range_is_refused_before_it_fills_the_memory(text):
    with pytest.raises(ConfigError, match=r"1,000,000 seeds"):
        parse_seeds(text)
    assert parse_seeds("2147483647") == (2147483647,) and len(parse_seeds("0-999999")) == 10**6


def test_a_seed_listed_twice_in_a_long_list_is_found_at_once():
    with pytest.raises(ConfigError, match="seed 5 is listed twice"):
        parse_seeds("0-199999,5")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30, unique=True))
def test_formatting_is_the_inverse_of_parsing(seeds):
    assert parse_seeds(format_seeds(seeds)) == tuple(seeds)


def test_bands_do_not_overlap():
    ordered = sorted(BANDS, key=lambda band: band.first)
    assert all(a.last < b.first for a, b in zip(ordered, ordered[1:], strict=False))


@pytest.mark.parametrize(
    ("seed", "use", "allowed"),
    [
        (0, "eval", True),
        (99, "train", False),
        (300, "train", False),
        (200000, "train", True),
        (200000, "demos", False),
        (100000, "demos", True),
        (700000, "train", False),
        (700000, "demos", False),
        (150, "eval", False),
        (300, "watch", True),
        (0, "watch", False),
        (10000, "watch", False),
        (700000, "watch", False),
    ],
)
def test_a_band_is_open_to_its_registered_uses_only(seed, use, allowed):
    if allowed:
        check_use([seed], use, where="test")
    else:
        with pytest.raises(ConfigError, match=str(seed)):
            check_use([seed], use, where="test")


def test_training_on_a_held_out_seed_is_refused():
    check_disjoint([1, 2], [3])
    with pytest.raises(ConfigError, match="2-3"):
        check_disjoint([1, 2, 3], [2, 3, 4])


@pytest.mark.parametrize(
    ("seed", "protocol", "fresh"),
    [
        (0, "sim100b", True),
        (10000, "sim100b", True),
        (700000, "sim100-spawn2", True),
        (300, "sim100b", False),
        (399, "sim100-30hz-spawn2-h10", False),
        (219, "sim100", False),
        (1000, "sim100b-h15", False),
        (1000, "sim100b-spawn2", True),  # another spawn: nobody has seen that state
        (200000, "sim100b-spawn2", False),
    ],
)
def test_nothing_is_confirmed_on_seeds_that_something_was_decided_on(seed, protocol, fresh):
    if fresh:
        check_fresh([seed], protocol, where="test")
    else:
        with pytest.raises(ConfigError, match=f"seed {seed} can confirm nothing"):
            check_fresh([10001, seed], protocol, where="test")


def test_the_confirmatory_bands_are_not_burned_and_every_training_seed_is():
    for protocol in ("sim100b", "sim100b-spawn2"):
        burned = burned_seeds(protocol)
        assert set(burned) <= set(BURNED)
        for band in BANDS:
            inside = any(b.first <= band.first and band.last <= b.last for b in burned)
            apart = all(b.last < band.first or band.last < b.first for b in burned)
            assert inside or apart
            if "confirmatory" in band.purpose or "held-out" in band.purpose:
                assert apart
            if band.uses & {"train", "demos"} and band.first >= 100000:
                assert inside


def test_streams_repeat_and_differ_in_purpose_and_in_every_key():
    def draw(*key):
        return stream(*key).standard_normal(4)

    base = draw("token", 0, 1, 2, 3)
    assert np.array_equal(base, draw("token", 0, 1, 2, 3))
    others = [
        ("tokens", 0, 1, 2, 3),
        ("token", 1, 1, 2, 3),
        ("token", 0, 2, 2, 3),
        ("token", 0, 1, 3, 3),
        ("token", 0, 1, 2, 4),
    ]
    assert all(not np.array_equal(base, draw(*key)) for key in others)
