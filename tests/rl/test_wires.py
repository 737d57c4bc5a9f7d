"""Every wire by hand: where its line is, how long it waits, what it forgets and what it never forgets."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from vla_rl.config.compose import compose
from vla_rl.config.schema import BudgetConfig, LossConfig, OptimConfig, TripwiresConfig
from vla_rl.errors import ConfigError, StoppedRun
from vla_rl.rl.guards import WORDS, Guards, Spent, Tripped, armed, refuse_tripped, stopped
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.wires import (
    Firing,
    UpdateFacts,
    WaveFacts,
    WireState,
    check_wires,
    judge_heldout,
    judge_update,
    judge_wave,
    projected_pace,
    silent_line,
)
from vla_rl.rollout.events import EpisodeDone, PredictRound

WAVE = WaveFacts(
    strikes=0, median_group_std_cm=1.0, knockaway_frac=0.1, setback_frac=0.5, reward_mean=0.0, success_rate=0.5
)
UPDATE = UpdateFacts(finite=True, anchor_kl=0.01, entropy=1.0, clip_fraction=0.0)


def waves(wires, *facts, state=None):
    """What each wave fires, one after the other, and the state after them."""
    state, fired = state or WireState(), []
    for wave in facts:
        state, firings = judge_wave(wires, state, replace(WAVE, **wave))
        fired.append([(f.wire, f.streak) for f in firings])
    return fired, state


def updates(wires, **facts):
    _, firings = judge_update(wires, WireState(), replace(UPDATE, **facts))
    return [(f.wire, f.value, f.threshold) for f in firings]


def test_with_every_wire_off_nothing_fires_and_nothing_is_remembered():
    off = TripwiresConfig(non_finite="off")
    worst = WaveFacts(9, None, 1.0, 1.0, 1.0, 0.0)
    assert judge_wave(off, WireState(), worst) == (WireState(), [])
    assert judge_update(off, WireState(), UpdateFacts(False, 9.0, 9.0, 1.0)) == (WireState(), [])
    assert judge_heldout(off, {1: 0.0}, {1: -99.0}) == []


def test_by_default_only_a_loss_or_gradient_that_is_not_finite_stops_a_run():
    modes = {name: value for name, value in asdict(TripwiresConfig()).items() if name in WORDS}
    assert [name for name, mode in modes.items() if mode != "off"] == ["non_finite"]


def test_the_documented_options_hold_the_constants_of_their_runs():
    r0, r1, r2 = (compose("config", [f"tripwires={name}"]).tree["tripwires"] for name in ("r0", "r1", "r2"))
    assert (r0["collapse"], r0["collapse_std_cm"], r0["collapse_waves"]) == ("armed", 0.05, 3)
    assert (r0["knockaway"], r0["knockaway_factor"], r0["knockaway_waves"]) == ("armed", 2.0, 3)
    assert r0["knockaway_baseline"] == r1["knockaway_baseline"] == 10 / 120 and r2["knockaway_baseline"] is None
    assert (r0["heldout_line_cm"], r1["kl_stop_nats"]) == (-1.0, 0.06)
    assert [r["kl_stop"] for r in (r0, r1, r2)] == ["record", "armed", "armed"]
    assert all(r["strikes"] == r["non_finite"] == r["heldout"] == "armed" for r in (r0, r1, r2))


def test_one_strike_fires_at_once():
    fired, _ = waves(TripwiresConfig(strikes="armed"), {}, {"strikes": 1})
    assert fired == [[], [("strikes", 1)]]


def test_collapse_needs_consecutive_waves_below_the_line():
    wires = TripwiresConfig(collapse="armed", collapse_std_cm=0.05, collapse_waves=3)
    low, fine = {"median_group_std_cm": 0.0499}, {"median_group_std_cm": 0.05}
    fired, _ = waves(wires, low, low, fine, low, low, low, low)
    assert fired == [[], [], [], [], [], [("collapse", 3)], [("collapse", 4)]]
    nothing_scored, _ = waves(wires, *[{"median_group_std_cm": None}] * 3)
    assert nothing_scored[-1] == [("collapse", 3)]


def test_a_streak_goes_on_in_another_process():
    wires = TripwiresConfig(collapse="armed")
    low = {"median_group_std_cm": 0.0}
    _, state = waves(wires, low, low)
    stored = json.loads(json.dumps(asdict(state)))
    fired, _ = waves(wires, low, state=WireState.from_dict(stored))
    assert fired == [[("collapse", 3)]]


def test_knock_aways_are_judged_against_a_number():
    wires = TripwiresConfig(knockaway="armed", knockaway_baseline=10 / 120, knockaway_factor=2, knockaway_waves=2)
    at_the_line, above = {"knockaway_frac": 20 / 120}, {"knockaway_frac": 21 / 120}
    fired, state = waves(wires, above, at_the_line, above, above)
    assert fired == [[], [], [], [("knockaway", 2)]] and state.knockaway_baseline is None


def test_the_wave_that_sets_the_baseline_is_exempt_from_that_wire_alone_and_only_once():
    wires = TripwiresConfig(knockaway="armed", knockaway_waves=1, strikes="armed")
    fired, state = waves(
        wires, {"knockaway_frac": 0.3, "strikes": 1}, {"knockaway_frac": 0.6}, {"knockaway_frac": 0.61}
    )
    assert fired == [[("strikes", 1)], [], [("knockaway", 1)]]
    assert state.knockaway_baseline == 0.3


def test_setbacks():
    fired, _ = waves(
        TripwiresConfig(setback="record", setback_share=0.7, setback_waves=2), *[{"setback_frac": 0.71}] * 2
    )
    assert fired == [[], [("setback", 2)]]


def test_divergence_compares_the_later_half_of_the_window_with_the_earlier():
    wires = TripwiresConfig(divergence="armed", divergence_waves=5, divergence_reward_cm=1.0, divergence_success=0.2)
    story = [(0.0, 0.5), (0.0, 0.5), (9.0, 0.9), (1.0, 0.3), (1.0, 0.3)]  # the middle one does not count
    facts = [{"reward_mean": reward, "success_rate": success} for reward, success in story]
    fired, _ = waves(wires, *facts)
    assert fired == [[], [], [], [], [("divergence", 1)]]
    for change in ({"reward_mean": 0.9}, {"success_rate": 0.35}):
        assert waves(wires, *facts[:-1], {**facts[-1], **change})[0][-1] == []
    falling = [{"reward_mean": -f["reward_mean"], "success_rate": f["success_rate"]} for f in facts]
    assert waves(wires, *falling)[0][-1] == []


def test_kl_stop_fires_on_one_reading_above_its_line_and_on_one_that_is_no_number():
    wires = TripwiresConfig(kl_stop="armed", kl_stop_nats=0.06)
    assert updates(wires, anchor_kl=0.06) == [] and updates(wires, anchor_kl=None) == []
    assert updates(wires, anchor_kl=0.0885) == [("kl_stop", 0.0885, 0.06)]
    assert updates(wires, anchor_kl=math.nan) == [("kl_stop", None, 0.06)]


def test_entropy_has_a_floor_and_a_ceiling():
    wires = TripwiresConfig(entropy="armed", entropy_floor_nats=0.5, entropy_ceiling_nats=2.0)
    assert updates(wires, entropy=0.5) == updates(wires, entropy=2.0) == updates(wires, entropy=None) == []
    assert updates(wires, entropy=0.49) == [("entropy", 0.49, 0.5)]
    assert updates(wires, entropy=2.01) == [("entropy", 2.01, 2.0)]
    assert updates(TripwiresConfig(entropy="armed", entropy_floor_nats=0.5), entropy=99.0) == []


def test_clip_share_and_an_update_that_is_not_finite():
    assert updates(TripwiresConfig(clip="record", clip_share=0.2), clip_fraction=0.21) == [("clip", 0.21, 0.2)]
    assert updates(TripwiresConfig(), finite=False) == [("non_finite", None, None)]


def test_held_out_reward_fires_only_if_its_whole_interval_is_below_the_line():
    wires = TripwiresConfig(heldout="armed", heldout_line_cm=-1.0)
    before = dict.fromkeys(range(20), 2.0)
    assert judge_heldout(wires, before, {seed: 0.9 for seed in before})[0].value == pytest.approx(-1.1)
    assert judge_heldout(wires, before, {seed: 1.1 for seed in before}) == []
    torn = {seed: -8.0 if seed < 5 else 2.0 for seed in before}  # mean -2.5, but a resample may hold few of the five
    assert judge_heldout(wires, before, torn) == []


def test_pace_is_projected_from_predicts_so_that_long_episodes_side_by_side_do_not_look_slow():
    """32 slots, 10 s a round: after 3 rounds 8 episodes of 3 predicts have ended, and 96 predicts were answered."""
    assert projected_pace(predicts=96, wall_s=30.0, episodes=8, replans=24) == pytest.approx(64.0)


def play_rounds(guards, clock, rounds):
    """Rounds of 4 slots, 10 s each; every third ends 4 episodes of 3 predicts."""
    for number in range(1, rounds + 1):
        clock[0] += 10.0
        for _ in range(4 * (number % 3 == 0)):
            guards.on_event(EpisodeDone("e", False, 3), lambda: Spent(None, 0.0, 0))
        guards.on_event(PredictRound(number, 4, 0, 99), lambda: Spent(None, 0.0, 0))


@pytest.mark.parametrize(("line", "fires"), [(7.9, False), (8.1, True)])  # 4 predicts in 10 s, 3 an episode: 8 a minute
def test_a_slow_wave_is_stopped_when_enough_episodes_have_ended_and_not_before(line, fires):
    clock = [0.0]
    wires = TripwiresConfig(pace="armed", pace_episodes=8, pace_episodes_per_min=line)
    guards = Guards(wires, BudgetConfig(), clock=lambda: clock[0])
    play_rounds(guards, clock, 5)
    if not fires:
        return play_rounds(guards, clock, 9)
    with pytest.raises(Tripped) as tripped:
        play_rounds(guards, clock, 3)
    assert tripped.value.firings == [Firing("pace", "armed", pytest.approx(8.0), line, 1)]


@pytest.mark.parametrize(
    ("limit", "spent"),
    [
        ({"gpu_h": 2.0}, Spent(2.0, 0.0, 0)),
        ({"wall_h": 3.0}, Spent(None, 3.0, 0)),
        ({"env_ticks": 900}, Spent(None, 0.0, 900)),
    ],
)
def test_a_budget_is_spent_when_its_limit_is_reached(limit, spent):
    guards = Guards(TripwiresConfig(), BudgetConfig(**limit))
    assert guards.over_budget(Spent(None, 0.0, 0)) == [] and guards.over_budget(Spent(1.9, 2.9, 899)) == []
    (key,) = limit
    assert [(f.wire, f.armed) for f in guards.over_budget(spent)] == [(f"budget.{key}", True)]
    with pytest.raises(Tripped):
        guards.wave_begins(spent)


def test_a_budget_of_gpu_hours_says_nothing_on_a_cpu():
    assert Guards(TripwiresConfig(), BudgetConfig(gpu_h=0.0)).over_budget(Spent(None, 99.0, 99)) == []


@pytest.mark.parametrize(
    ("wires", "kl_rows"),
    [
        (TripwiresConfig(kl_stop="armed"), 0),
        (TripwiresConfig(entropy="record"), 32),
        (TripwiresConfig(entropy="record", entropy_floor_nats=0.0), 32),
        (TripwiresConfig(pace="armed"), 32),
    ],
)
def test_a_wire_that_could_never_fire_is_refused(wires, kl_rows):
    with pytest.raises(ConfigError, match="no line to cross"):
        check_wires(wires, kl_rows=kl_rows, ratio_moves=True)
    check_wires(TripwiresConfig(kl_stop="armed"), kl_rows=1, ratio_moves=False)


@pytest.mark.parametrize(
    ("wires", "beyond"),
    [
        ({"knockaway": "armed", "knockaway_factor": 2.0}, {"knockaway_baseline": 0.5}),
        ({"setback": "record"}, {"setback_share": 1.0}),
        ({"clip": "record"}, {"clip_share": 1.0}),
    ],
)
def test_a_share_that_no_reading_is_above_is_refused(wires, beyond):
    """No reading fires there, and just below one does."""
    worst = {"knockaway_frac": 1.0, "setback_frac": 1.0}, {"clip_fraction": 1.0}
    (wire,), ((key, line),) = [name for name in wires if name in WORDS], beyond.items()
    at_once = {} if wire == "clip" else {f"{wire}_waves": 1}
    silent = TripwiresConfig(**wires, **at_once, **beyond)
    assert waves(silent, worst[0])[0] == [[]] and updates(silent, **worst[1]) == []
    with pytest.raises(ConfigError, match=f"{wire} cannot fire"):
        check_wires(silent, kl_rows=1, ratio_moves=True)
    audible = TripwiresConfig(**wires, **at_once, **{key: 0.99 * line})
    assert waves(audible, worst[0])[0] == [[(wire, 1)]] or updates(audible, **worst[1]) == [(wire, 1.0, 0.99)]
    check_wires(audible, kl_rows=1, ratio_moves=True)
    off = {name: "off" if name == wire else value for name, value in wires.items()}
    check_wires(TripwiresConfig(**off, **beyond), kl_rows=1, ratio_moves=True)


def test_a_captured_baseline_that_no_share_can_be_above_is_known():
    wires = TripwiresConfig(knockaway="armed", knockaway_factor=2.0)
    assert silent_line(wires, WireState()) is None
    assert silent_line(wires, WireState(knockaway_baseline=0.49)) is None
    assert silent_line(wires, WireState(knockaway_baseline=0.5)) == 1.0
    assert silent_line(replace(wires, knockaway="off"), WireState(knockaway_baseline=0.5)) is None


def test_a_clip_share_that_is_zero_by_design_may_be_recorded_and_stops_nothing():
    with pytest.raises(ConfigError, match="use loss.old_logp=recorded"):
        check_wires(TripwiresConfig(clip="armed"), kl_rows=1, ratio_moves=False)
    check_wires(TripwiresConfig(clip="record"), kl_rows=1, ratio_moves=False)
    check_wires(TripwiresConfig(clip="armed"), kl_rows=1, ratio_moves=True)
    ratios = {
        (old, epochs): UpdateSettings.of(LossConfig(old_logp=old, epochs=epochs), OptimConfig()).ratio_moves
        for old in ("rescored", "recorded")
        for epochs in (1, 2)
    }
    assert [key for key, moves in ratios.items() if not moves] == [("rescored", 1)]


def test_only_an_armed_wire_stops_and_only_pace_and_budget_let_a_run_go_on():
    row = {"step": 4, "tripwires": [Firing("collapse", "record", 0.0, 0.05, 3).row()]}
    refuse_tripped([{"step": 1}, row], "here")
    for wire, final in (("collapse", True), ("kl_stop", True), ("pace", False), ("budget.wall_h", False)):
        firing = Firing(wire, "armed", 1.0, 2.0, 1)
        assert armed([firing]) and ("is over" in str(stopped(4, [firing], "here"))) is final
        rows = [{"step": 4, "tripwires": [firing.row()]}]
        if final:
            with pytest.raises(StoppedRun, match="step 4"):
                refuse_tripped(rows, "here")
        else:
            refuse_tripped(rows, "here")


def test_held_out_rewards_that_are_no_number_are_left_out_of_the_comparison():
    guards = Guards(TripwiresConfig(heldout="armed"), BudgetConfig())
    first = [{"seed": seed, "reward": reward} for seed, reward in ((1, 3.0), (2, 3.0), (3, float("nan")), (4, None))]
    assert guards.after_eval(first) == []
    (firing,) = guards.after_eval([{**row, "reward": -1.0} for row in first])
    assert firing.wire == "heldout" and firing.value == -4.0
    (firing,) = guards.after_eval([{"seed": 1, "reward": float("inf")}, {"seed": 2, "reward": 0.0}])
    assert firing.value == -3.0
