"""Power by enumeration, against sums by hand and against simulation of the very rule."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import bootstrap_counts
from vla_rl.stats.mcnemar import Signs, exact_mcnemar, fewest_discordant, signs
from vla_rl.stats.power import power_of_mcnemar, power_of_mean_interval, power_of_paired_interval, power_of_tail


def test_power_of_a_tail_is_the_chance_of_its_critical_region_at_the_true_rate():
    assert power_of_tail(100, 0.07, 0.10, 0.05) == pytest.approx(stats.binom.sf(11, 100, 0.17))
    assert power_of_tail(100, 0.44, -0.15, 0.05) == pytest.approx(stats.binom.cdf(35, 100, 0.29))
    assert power_of_tail(100, 0.07, -0.07, 0.05) == 1.0  # a rate of zero is always seen
    assert power_of_tail(5, 0.3, -0.2, 0.05) == 0.0  # no count of five is surprisingly low


def test_power_of_mcnemar_with_six_pairs_is_the_chance_that_all_six_are_won():
    assert power_of_mcnemar(6, 0.5, 0.7, 0.05, two_sided=True) == pytest.approx(0.6**6)
    assert power_of_mcnemar(5, 0.5, 0.7, 0.05, two_sided=True) == 0.0
    assert power_of_mcnemar(5, 0.5, 0.7, 0.05, two_sided=False) == pytest.approx(0.6**5)


def test_power_of_mcnemar_is_the_sum_over_all_outcomes():
    pairs, only_after, only_before, total = 14, 0.35, 0.1, 0.0
    for won in range(pairs + 1):
        for lost in range(pairs - won + 1):
            if won > lost and exact_mcnemar(won, lost) <= 0.05:
                tied = pairs - won - lost
                ways = comb(pairs, won) * comb(pairs - won, lost)
                total += ways * only_after**won * only_before**lost * 0.55**tied
    assert power_of_mcnemar(pairs, 0.25, 0.45, 0.05, two_sided=True) == pytest.approx(total, rel=1e-9)


def test_size_of_the_exact_test_never_exceeds_the_nominal_one():
    for pairs in (5, 20, 100):
        assert power_of_mcnemar(pairs, 0.0, 0.4, 0.05, two_sided=True) <= 0.025
        assert power_of_mcnemar(pairs, 0.0, 0.4, 0.05, two_sided=False) <= 0.05


def test_power_of_the_paired_interval_is_how_often_the_seeded_bootstrap_fires():
    rng, fired, trials = np.random.default_rng(7), 0, 600
    for won, lost, tied in rng.multinomial(30, [0.3, 0.1, 0.6], size=trials):
        fired += bootstrap_counts(int(won), int(lost), int(won + lost + tied)).low > 0
    power = power_of_paired_interval(30, 0.2, 0.4)
    assert power == pytest.approx(fired / trials, abs=4 * (power * (1 - power) / trials) ** 0.5)


def test_a_higher_line_is_passed_less_often():
    powers = [power_of_paired_interval(40, 0.3, 0.4, line=line) for line in (-0.1, 0.0, 0.1, 0.29)]
    assert powers == sorted(powers, reverse=True) and powers[0] > 0.9 and powers[-1] < 0.1


@pytest.mark.parametrize(("effect", "discordant", "pairs"), [(0.3, 0.2, 20), (-0.1, 0.2, 20), (0.1, 0.2, 0)])
def test_an_effect_that_cannot_be_is_refused(effect, discordant, pairs):
    with pytest.raises(UsageError):
        power_of_mcnemar(pairs, effect, discordant, 0.05, two_sided=True)


def test_power_of_a_mean_is_one_half_where_the_interval_just_reaches_the_line():
    assert power_of_mean_interval(25, 1.959964 * 2 / 5, 2.0) == pytest.approx(0.5, abs=1e-6)
    assert power_of_mean_interval(25, 0.0, 2.0) == pytest.approx(0.025, abs=1e-9)
    with pytest.raises(UsageError):
        power_of_mean_interval(25, 1.0, 0.0)


def test_fewest_discordant_pairs_are_six_two_sided_and_five_one_sided():
    assert fewest_discordant(0.05, two_sided=True) == 6 and fewest_discordant(0.05, two_sided=False) == 5
    assert fewest_discordant(0.05, two_sided=False, mid_p=True) == 4  # 1/32 after 1/16


def test_signs_pair_by_seed():
    assert signs({1: 0.0, 2: 5.0, 3: 1.0}, {3: 1.0, 2: 4.0, 1: 0.5}) == Signs(won=1, lost=1, tied=1)
    with pytest.raises(UsageError, match="same seeds"):
        signs({1: 0.0}, {2: 0.0})
