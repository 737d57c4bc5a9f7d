"""Training seeds as clusters, and several reads as a family."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import bootstrap_mean
from vla_rl.stats.cluster import cluster_bootstrap, smallest_p_over_clusters
from vla_rl.stats.holm import holm


def test_training_seeds_that_disagree_widen_the_interval_beyond_that_of_their_pooled_episodes():
    apart = {"a": [1.0] * 40, "b": [0.0] * 40, "c": [0.0] * 40}
    clustered = cluster_bootstrap(apart)
    pooled = bootstrap_mean([d for ds in apart.values() for d in ds])
    assert clustered.mean == pytest.approx(1 / 3) and clustered.means == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert (clustered.low, clustered.high) == (0.0, 1.0)  # P(no draw of a) = 8/27, P(three of a) = 1/27
    assert pooled[0] > 0.2 and pooled[1] < 0.45


def test_training_seeds_weigh_the_same_however_many_episodes_they_have():
    assert cluster_bootstrap({"a": [1.0], "b": [0.0] * 99}).mean == 0.5


def test_the_spread_of_equal_training_seeds_is_that_of_their_episodes():
    rng = np.random.default_rng(3)
    same = {name: list(rng.permutation([1.0, -1.0] * 50)) for name in "abcd"}
    read = cluster_bootstrap(same)
    assert read.high == pytest.approx(1.96 / 20, abs=0.012) and read.low == pytest.approx(-1.96 / 20, abs=0.012)
    assert read.episodes == 400 and read == cluster_bootstrap(dict(reversed(same.items())))


def test_ends_of_whole_numbers_are_exact_whatever_the_numbers_of_episodes():
    read = cluster_bootstrap({"a": [1, 0, 0], "b": [0, 1, 1, 0, 0], "c": [1.0] * 7})
    for end in (read.low, read.high):
        assert (end * 3 * 5 * 7 * 3).denominator == 1 and 0 <= end <= 1


@pytest.mark.parametrize("differences", [{}, {"a": [1.0]}, {"a": [1.0], "b": []}])
def test_fewer_than_two_training_seeds_with_episodes_are_refused(differences):
    with pytest.raises(UsageError):
        cluster_bootstrap(differences)


def test_three_training_seeds_cannot_be_significant_and_six_can():
    assert smallest_p_over_clusters(3) == 0.25 and smallest_p_over_clusters(6) == pytest.approx(0.03125)


def test_holm_meets_an_example_by_hand():
    # sorted .005 .01 .03 .04 -> 4*.005=.02, 3*.01=.03, 2*.03=.06, max(.06, .04)=.06
    got = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert got == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({}) == {} and holm({"a": 0.2}) == {"a": 0.2} and holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    with pytest.raises(UsageError):
        holm({"a": 1.2})


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_lies_between_the_raw_and_the_bonferroni_value(p_values):
    adjusted = holm(p_values)
    for a, p in p_values.items():
        assert p <= adjusted[a] <= 1.0 and adjusted[a] <= max(len(p_values) * max(p_values.values()), p)
        assert all(adjusted[a] <= adjusted[b] for b, q in p_values.items() if p < q)
