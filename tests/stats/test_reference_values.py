"""The table of reference values: published figures, closed forms, and SciPy's own tests."""

import pytest
from scipy import stats

from vla_rl.stats.binomial import critical_high, critical_low, lower_tail, trials_without_event, upper_tail
from vla_rl.stats.intervals import clopper_pearson, lower_bound, newcombe, upper_bound, wilson
from vla_rl.stats.mcnemar import exact_mcnemar, mid_p_mcnemar, one_sided_mcnemar


@pytest.mark.parametrize(
    ("got", "reference"),
    [
        (lower_tail(2, 100, 0.07), 0.0257885),
        (upper_tail(12, 100, 0.07), 0.0469004),
        (lower_tail(1, 50, 0.1), 0.0337859),
        (upper_tail(8, 20, 0.2), 0.0321427),
        (lower_tail(3, 20, 0.3), 0.1070868),
        (lower_tail(3, 100, 0.07), 0.0744),  # the count above the documented ABORT line is no surprise
        (lower_tail(35, 100, 0.44), 0.0424),  # the documented line of the flow head's regression
    ],
)
def test_tails_meet_tables_and_documents(got, reference):
    assert got == pytest.approx(reference, abs=6e-5 if reference in (0.0744, 0.0424) else 6e-8)


@pytest.mark.parametrize(
    ("successes", "trials", "exact", "score"),
    [
        (81, 263, (0.2527, 0.3676), (0.2553, 0.3662)),
        (15, 148, (0.0578, 0.1617), (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1684), (0.0, 0.1611)),
        (1, 29, (0.0009, 0.1776), (0.0061, 0.1718)),
    ],
)
def test_intervals_meet_newcombe_1998(successes, trials, exact, score):
    assert clopper_pearson(successes, trials) == pytest.approx(exact, abs=6e-5)
    assert wilson(successes, trials) == pytest.approx(score, abs=6e-5)


@pytest.mark.parametrize(
    ("successes", "low", "high"),
    [
        (0, 0, 0.3085),
        (1, 0.0025, 0.4450),
        (2, 0.0252, 0.5561),
        (3, 0.0667, 0.6525),
        (4, 0.1216, 0.7376),
        (5, 0.1871, 0.8129),
    ],
)
def test_exact_intervals_of_ten_trials_meet_the_tables(successes, low, high):
    assert clopper_pearson(successes, 10) == pytest.approx((low, high), abs=6e-5)
    mirrored = clopper_pearson(10 - successes, 10)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=6e-5)


def test_one_sided_bounds_have_their_closed_forms():
    assert upper_bound(0, 100) == pytest.approx(0.029513, abs=6e-7) == pytest.approx(1 - 0.05 ** (1 / 100), abs=1e-6)
    assert lower_bound(10, 10) == pytest.approx(0.741134, abs=6e-7)
    assert lower_bound(0, 5) == 0.0 and upper_bound(5, 5) == 1.0


@pytest.mark.parametrize(("bound", "trials"), [(0.10, 29), (0.07, 42), (0.05, 59), (0.03, 99), (0.01, 299)])
def test_trials_without_event_are_the_fewest_that_reach_the_bound(bound, trials):
    assert trials_without_event(bound) == trials
    assert upper_bound(0, trials) <= bound < upper_bound(0, trials - 1)


@pytest.mark.parametrize(
    ("won", "lost", "two_sided"),
    [(121, 59, 4.434e-6), (6, 16, 0.05248), (5, 15, 0.041389), (1, 9, 0.021484), (0, 6, 0.03125), (0, 5, 0.0625)],
)
def test_exact_mcnemar_meets_the_references(won, lost, two_sided):
    assert exact_mcnemar(won, lost) == exact_mcnemar(lost, won) == pytest.approx(two_sided, rel=2e-4)
    assert exact_mcnemar(won, lost) == pytest.approx(stats.binomtest(won, won + lost, 0.5).pvalue, rel=1e-10)
    greater = stats.binomtest(won, won + lost, 0.5, alternative="greater").pvalue
    assert one_sided_mcnemar(won, lost) == pytest.approx(greater, rel=1e-10)


def test_mid_p_meets_the_reference_and_halves_the_last_term():
    assert mid_p_mcnemar(6, 16) == pytest.approx(0.03469, abs=6e-6)
    assert mid_p_mcnemar(3, 0, two_sided=False) == pytest.approx(1 / 16)  # half of 1/8
    assert mid_p_mcnemar(2, 1, two_sided=False) == pytest.approx(1 / 8 + 3 / 16)


def test_newcombes_interval_of_a_difference_meets_his_first_example():
    low, high = newcombe((48, 80), (56, 70))  # 56/70 - 48/80 = 0.2
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=6e-5)


@pytest.mark.parametrize(("trials", "rate", "low", "high"), [(100, 0.07, 2, 12), (100, 0.44, 35, 53), (5, 0.3, -1, 4)])
def test_critical_counts_are_the_last_whose_tail_is_small_enough(trials, rate, low, high):
    assert (critical_low(trials, rate, 0.05), critical_high(trials, rate, 0.05)) == (low, high)
    assert stats.binom.cdf(low, trials, rate) <= 0.05 < stats.binom.cdf(low + 1, trials, rate)
    assert stats.binom.sf(high - 1, trials, rate) <= 0.05 < stats.binom.sf(high - 2, trials, rate)
    assert stats.binom.ppf(0.05, trials, rate) == low + 1  # the quantile function would be one too high


def test_no_count_is_surprising_where_the_rate_is_sure():
    assert critical_high(20, 1.0, 0.05) == 21 and critical_low(20, 1.0, 0.05) == 19
    assert critical_low(0, 0.5, 0.05) == -1
