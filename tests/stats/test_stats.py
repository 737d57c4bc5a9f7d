"""Statistics against closed forms and published values."""

import pytest

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import paired_bootstrap
from vla_rl.stats.intervals import clopper_pearson
from vla_rl.stats.mcnemar import exact_mcnemar


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0.0, 0.1684), (1, 29, 0.0009, 0.1776)],
)
def test_clopper_pearson_matches_newcombe_1998(successes, trials, low, high):
    got = clopper_pearson(successes, trials)
    assert got == pytest.approx((low, high), abs=6e-5)


def test_upper_bound_without_events_has_its_closed_form():
    assert clopper_pearson(0, 100, level=0.90)[1] == pytest.approx(1 - 0.05 ** (1 / 100), abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(UsageError):
        clopper_pearson(successes, trials)


def test_bootstrap_of_a_constant_difference_is_a_point():
    read = paired_bootstrap({1: 0.0, 2: 5.0, 3: -1.0}, {1: 2.0, 2: 7.0, 3: 1.0})
    assert (read.mean, read.low, read.high, read.pairs) == (2.0, 2.0, 2.0, 3)


def test_bootstrap_pairs_by_seed_and_not_by_order():
    forward = paired_bootstrap({1: 0.0, 2: 1.0, 3: 4.0}, {1: 1.0, 2: 1.0, 3: 2.0})
    shuffled = paired_bootstrap({3: 4.0, 1: 0.0, 2: 1.0}, {2: 1.0, 3: 2.0, 1: 1.0})
    assert forward == shuffled


def test_bootstrap_interval_covers_two_standard_errors_of_many_pairs():
    before = {s: 0.0 for s in range(400)}
    after = {s: 1.0 if s % 2 else -1.0 for s in range(400)}  # mean 0, standard error 1/20
    read = paired_bootstrap(before, after)
    assert (
        read.mean == 0 and read.low == pytest.approx(-0.098, abs=0.01) and read.high == pytest.approx(0.098, abs=0.01)
    )


def test_bootstrap_refuses_different_seed_sets():
    with pytest.raises(UsageError, match="same seeds"):
        paired_bootstrap({1: 0.0}, {2: 0.0})


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (2, 6, 74 / 256), (3, 3, 1.0), (10, 2, 158 / 4096)],
)
def test_exact_mcnemar_is_twice_the_smaller_tail_of_fair_coins(only_a, only_b, p):
    assert exact_mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-9)


def test_mcnemar_of_no_counts_is_refused():
    with pytest.raises(UsageError):
        exact_mcnemar(-1, 3)
