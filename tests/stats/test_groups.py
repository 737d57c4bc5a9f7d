"""The forecast of groups with both outcomes."""

import pytest

from vla_rl.errors import UsageError
from vla_rl.stats.groups import barren_wave, mixed_share, mixed_share_range


@pytest.mark.parametrize(("rate", "documented"), [(0.05, 0.337), (0.07, 0.440), (0.08, 0.487), (0.20, 0.832)])
def test_the_documented_forecasts_of_groups_of_eight_are_met(rate, documented):
    assert mixed_share(rate, 8) == pytest.approx(documented, abs=5e-4)


def test_groups_that_always_or_never_succeed_are_not_mixed_and_neither_is_a_single_draw():
    assert mixed_share(0.0, 8) == mixed_share(1.0, 8) == 0.0
    assert mixed_share(0.3, 1) == pytest.approx(0.0, abs=1e-15)
    assert mixed_share(0.5, 2) == 0.5


def test_an_interval_that_holds_one_half_reaches_its_peak_and_another_ends_at_its_ends():
    assert mixed_share_range(0.1, 0.9, 2) == (pytest.approx(0.18), 0.5)
    assert mixed_share_range(0.6, 0.9, 2) == (pytest.approx(0.18), pytest.approx(0.48))


def test_a_wave_without_a_mixed_group_is_as_likely_as_all_of_its_groups_being_alike():
    assert barren_wave(0.5, 2, 3) == pytest.approx(0.125)


@pytest.mark.parametrize(("rate", "draws"), [(-0.1, 8), (1.1, 8), (0.5, 0)])
def test_what_is_no_rate_or_no_group_is_refused(rate, draws):
    with pytest.raises(UsageError):
        mixed_share(rate, draws)
