"""The bootstrap of counts: on the lattice, a function of its seed, and that of the pairs themselves."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import bootstrap_counts, bootstrap_mean
from vla_rl.stats.exact import order_statistics, written
from vla_rl.stats.power import sum_tail

COUNTS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n)).filter(lambda c: c[0] + c[1] <= n)
)


def test_ends_are_the_250th_and_the_9750th_of_10000_resamples_and_not_their_neighbours():
    assert order_statistics(0.95, 10_000) == (249, 9749)
    assert order_statistics(0.90, 10) == (0, 9)
    data = np.arange(10_000)
    assert tuple(np.quantile(data, [0.025, 0.975], method="inverted_cdf")) == (249, 9749)


@settings(max_examples=50, deadline=None)
@given(COUNTS, st.integers(0, 5))
def test_the_interval_of_counts_lies_on_the_lattice_and_repeats_by_its_seed(counts, seed):
    won, lost, pairs = counts
    read = bootstrap_counts(won, lost, pairs, resamples=2000, seed=seed)
    assert read == bootstrap_counts(won, lost, pairs, resamples=2000, seed=seed)
    assert all(isinstance(end, int) for end in (read.low, read.high))
    assert -lost * pairs <= read.low <= read.high <= won * pairs and -pairs <= read.low and read.high <= pairs


@settings(max_examples=30, deadline=None)
@given(COUNTS)
def test_the_interval_of_counts_is_that_of_the_exact_distribution_up_to_resampling(counts):
    won, lost, pairs = counts
    read = bootstrap_counts(won, lost, pairs, resamples=20_000)
    assert sum_tail(won, lost, pairs, read.low - 1) < 0.025 + 0.006 and sum_tail(won, lost, pairs, read.low) > 0.019
    assert sum_tail(won, lost, pairs, read.high) > 0.975 - 0.006 and sum_tail(won, lost, pairs, read.high - 1) < 0.981


def test_the_exact_distribution_of_three_pairs_is_that_of_all_27_resamples():
    sums = [sum(draw) for draw in product((1, 1, -1), repeat=3)]  # two pairs won, one lost
    for at_most in range(-4, 5):
        share = Fraction(sum(s <= at_most for s in sums), 27)
        assert sum_tail(2, 1, 3, at_most) == pytest.approx(float(share), abs=1e-12)


def test_a_clear_gain_lies_above_zero_and_a_small_one_does_not():
    assert bootstrap_counts(10, 1, 20).low > 0
    small = bootstrap_counts(3, 1, 20)
    assert small.low <= 0 <= small.high and small.sum == 2


def test_pairs_that_all_agree_give_a_point():
    tied, won = bootstrap_counts(0, 0, 20), bootstrap_counts(20, 0, 20)
    assert (tied.low, tied.high) == (0, 0)
    assert (won.low, won.high) == (20, 20)


@pytest.mark.parametrize("counts", [(0, 0, 0), (-1, 0, 3), (2, 2, 3)])
def test_what_is_no_count_of_pairs_is_refused(counts):
    with pytest.raises(UsageError):
        bootstrap_counts(*counts)


def test_the_interval_of_a_mean_is_a_point_for_constants_and_covers_two_standard_errors():
    assert bootstrap_mean([3.0] * 5) == (3.0, 3.0)
    low, high = bootstrap_mean([1.0, -1.0] * 200)
    assert low == pytest.approx(-0.098, abs=0.01) and high == pytest.approx(0.098, abs=0.01)
    with pytest.raises(UsageError):
        bootstrap_mean([])


def test_numbers_are_read_as_they_were_written():
    assert written(0.3) == Fraction(3, 10) and written(0.07) * 100 == 7 and written(5) == 5
    assert Fraction(20, 20) - Fraction(14, 20) <= written(0.30) < 1.0 - 14 / 20  # in floats it is beyond the line
    with pytest.raises(UsageError):
        written(float("nan"))
