"""D004: GRPO R2. Published: 7 of 100 in the band, preflight PASS at 8, wave 0 aborts at 0.00 and passes at 0.50, parity
PASS, a retry does not fit the budget, closed without a primary read."""

import json
from dataclasses import replace

import pytest
from bench import Bench, prereg, refused
from encoded import EXPERIMENTS, Encoded, count, encoded, number, row

from vla_rl.prereg.amendments import start
from vla_rl.prereg.budget import account
from vla_rl.prereg.delta import Op, apply, lookup, read_path
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.judging import judge, verdict_of
from vla_rl.prereg.lint import findings
from vla_rl.prereg.pins import Place
from vla_rl.prereg.state import fold
from vla_rl.stats.groups import mixed_share

ID = "D004-grpo-r2"
DRAFT = EXPERIMENTS / ID / "draft.yaml"
WON = (34, 35, 63, 68, 71, 91, 96)


def won(seeds, key="success"):
    """More episodes of which a metric is true."""
    return lambda e: replace(e, episodes=tuple({**r, key: r[key] or r["seed"] in seeds} for r in e.episodes))


def lost(seeds, key):
    """Fewer."""
    return lambda e: replace(e, episodes=tuple({**r, key: r[key] and r["seed"] not in seeds} for r in e.episodes))


def after(amendments: int) -> Encoded:
    """The registration as it was then: a later amendment takes the gate of the exam away."""
    d004 = encoded(ID)
    return replace(d004, loaded=replace(d004.loaded, versions=d004.loaded.versions[: amendments + 1]))


# (read or gate, published, evidence that is moved, what follows then); a second line for the other side of a band
TURNS = [
    ("competence", "BAND", {"base_count": won(range(13))}, "PASS"),
    ("competence", "BAND", {"base_count": lost(WON[:3], "success")}, "ABORT"),
    ("preflight", "PASS", {"preflight": count("success", 6)}, "BAND"),
    ("preflight", "PASS", {"preflight": count("success", 2)}, "ABORT"),
    ("premise", "INCONCLUSIVE", {"preflight": count("success", 2)}, "PASS"),
    ("premise", "INCONCLUSIVE", {"preflight": count("success", 13)}, "FAIL"),
    ("not_frozen", "PASS", {"motion": count("frozen", 1)}, "FAIL"),
    ("calibration", "FAIL", {"wave0": row(1, "mixed_groups_frac", 0.25)}, "PASS"),
    ("calibration_relaunch", "PASS", {"wave0_relaunch": row(1, "mixed_groups_frac", 0.125)}, "FAIL"),
    ("substrate", "PASS", {"diagnosis": count("interacted", 0)}, "FAIL"),
    ("unlucky", "INCONCLUSIVE", {"diagnosis": count("success", 3)}, "FAIL"),
    ("inert_chance", "PASS", {"inert": count("interacted", 8)}, "INCONCLUSIVE"),
    ("inert_parity", "FAIL", {"inert": count("interacted", 6)}, "PASS"),
    ("parity", "PASS", {"parity_loop": won((200, 201, 202))}, "ABORT"),
    ("parity", "PASS", {"parity_loop": lost(range(200, 207), "interacted")}, "ABORT"),
    ("parity_successes", "PASS", {"parity_serving": won((200, 201, 202))}, "FAIL"),
    ("parity_interacted", "PASS", {"parity_loop": lost(range(200, 207), "interacted")}, "FAIL"),
    ("memory", "FAIL", {"machine": number("in_use_gib", 72.09)}, "PASS"),
    ("kl", "PASS", {"machine": number("kl_step_1", 0.061)}, "FAIL"),
]
# Just on this side of the line: nothing turns.
STAYS = [
    ("competence", {"base_count": won(range(12))}),
    ("preflight", {"preflight": count("success", 7)}),
    ("premise", {"preflight": count("success", 3)}),
    ("calibration", {"wave0": row(1, "mixed_groups_frac", 0.125)}),
    ("calibration_relaunch", {"wave0_relaunch": row(1, "mixed_groups_frac", 0.2)}),
    ("inert_chance", {"inert": count("interacted", 7)}),
    ("inert_parity", {"inert": count("interacted", 5)}),
    ("parity", {"parity_loop": won((200, 201))}),
    ("parity", {"parity_loop": lost(range(200, 206), "interacted")}),  # 14 of 20 beside 20 of 20: the band is wide
    ("memory", {"machine": number("in_use_gib", 75.01)}),
    ("kl", {"machine": number("kl_step_1", 0.06)}),
]
NEVER = {"primary", "regression", "advantage_mass", "knockaway", "setback", "earned", "shoved", "flow", "sampled"}


def as_it_was(name: str) -> Encoded:
    return after(2) if name == "competence" else encoded(ID)


def test_every_read_and_gate_is_listed():
    d004 = encoded(ID)
    items = {name for version in d004.loaded.versions for name in version.registration.rules()}
    assert items == {*NEVER, *(name for name, *_ in TURNS)}
    assert all(d004.recorded(name) is None for name in NEVER)


@pytest.mark.parametrize(("name", "published", "moved", "then"), TURNS)
def test_the_published_decision_follows_from_the_evidence_and_turns_with_it(name, published, moved, then):
    then_in_force = as_it_was(name)
    recorded = then_in_force.loaded.state.gates.get(name, {}).get("decision") or then_in_force.recorded(name)
    assert recorded == then_in_force.decision(name) == published
    assert then_in_force.decision(name, moved) == then != published


@pytest.mark.parametrize(("name", "moved"), STAYS)
def test_on_this_side_of_the_line_it_stays(name, moved):
    assert as_it_was(name).decision(name, moved) == as_it_was(name).decision(name)


def test_the_bands_of_the_preflight_are_the_published_ones():
    decisions = {k: encoded(ID).decision("preflight", {"preflight": count("success", k)}) for k in range(101)}
    bands = {label: [k for k in decisions if decisions[k] == label] for label in ("ABORT", "BAND", "PASS")}
    assert bands == {"ABORT": [0, 1, 2], "BAND": [3, 4, 5, 6], "PASS": list(range(7, 101))}
    tail = encoded(ID).outcome("premise", {"preflight": count("success", 2)}).p
    assert tail == pytest.approx(0.0258, abs=5e-5)
    assert encoded(ID).outcome("premise", {"preflight": count("success", 3)}).p == pytest.approx(0.0744, abs=5e-5)


def test_chances_are_the_published_ones():
    assert encoded(ID).outcome("inert_chance").p == pytest.approx(2e-8, rel=0.1)
    assert encoded(ID).outcome("unlucky").p == pytest.approx(0.51, abs=0.005)
    assert encoded(ID).outcome("parity_successes").estimate == encoded(ID).outcome("parity_interacted").estimate == 0.0
    assert encoded(ID).outcome("inert_parity").estimate == pytest.approx(-0.59)


@pytest.mark.parametrize(("rate", "published"), [(0.05, 0.337), (0.07, 0.440), (0.20, 0.832)])
def test_forecasts_of_mixed_groups_are_the_published_ones(rate, published):
    assert mixed_share(rate, 8) == pytest.approx(published, abs=5e-4)


# ------------------------------------------------------------------------------------------ reads that were never taken
def primary(name: str, wins: int, losses: int = 0):
    base = [{"seed": seed, "success_documented": seed in WON} for seed in range(100)]
    changed = {*WON[:losses], *range(wins)}
    trained = [{**r, "success_documented": r["success_documented"] != (r["seed"] in changed)} for r in base]
    found = {
        (side, None): Evidence(side, None, "episodes", episodes=tuple(rows))
        for side, rows in (("before", base), ("after", trained))
    }
    return judge(encoded(ID).registration, found, name)


@pytest.mark.parametrize(
    ("name", "wins", "losses", "status"),
    [
        ("primary", 5, 0, "PASS"),
        ("primary", 4, 0, "FAIL"),  # flat: a banked negative
        ("primary", 0, 0, "FAIL"),
        ("regression", 0, 5, "PASS"),
        ("regression", 0, 4, "INCONCLUSIVE"),
        ("regression", 5, 0, "FAIL"),
    ],
)
def test_the_primary_read_would_have_turned_on_one_scene(name, wins, losses, status):
    assert primary(name, wins, losses).status == status


@pytest.mark.parametrize(("kept", "status"), [(44, "PASS"), (36, "PASS"), (35, "FAIL")])
def test_the_flow_head_may_not_fall_materially(kept, status):
    found = {("flow_after", None): Evidence("flow_after", None, "counts", head="flow", counts={"success": (kept, 100)})}
    outcome = judge(encoded(ID).registration, found, "flow")
    assert outcome.status == status
    if kept == 35:
        assert outcome.details["p_at_most"] == pytest.approx(0.0424, abs=5e-5)


@pytest.mark.parametrize("key", ["knockaway_frac", "setback_frac", "earned_progress_mean_cm", "ungrasped_disp_mean_cm"])
def test_behaviour_is_recorded_from_the_last_wave(key):
    read = {"knockaway_frac": "knockaway", "setback_frac": "setback", "earned_progress_mean_cm": "earned"}
    for last in (0.25, 0.5):
        rows = tuple({"step": i, "episodes": 64, key: last if i == 10 else 0.0} for i in range(1, 11))
        found = {("training", None): Evidence("training", None, "series", rows=rows)}
        assert judge(encoded(ID).registration, found, read.get(key, "shoved")).estimate == last


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_the_share_of_the_success_term_is_recorded_from_the_first_wave(share):
    rows = tuple({"step": i, "success_advantage_share": share if i == 1 else 0.0} for i in range(1, 11))
    found = {("training", None): Evidence("training", None, "series", rows=rows)}
    assert judge(encoded(ID).registration, found, "advantage_mass").estimate == share


@pytest.mark.parametrize("k", [8, 20])
def test_sampled_success_after_training_is_recorded(k):
    rows = tuple({"seed": seed, "success_documented": seed < k} for seed in range(100))
    found = {("sampled", None): Evidence("sampled", None, "episodes", episodes=rows)}
    assert judge(encoded(ID).registration, found, "sampled").estimate == k


# ------------------------------------------------------------------------------------------------- budget, order, state
def until(line: int):
    """The state before a line of the ledger, with the registration that was in force."""
    entries = encoded(ID).loaded.entries[:line]
    version = sum(entry.event == "amended" for entry in entries)
    return encoded(ID).loaded.versions[version].registration, fold(entries)


def lines(event: str) -> list[int]:
    return [entry.seq for entry in encoded(ID).loaded.entries if entry.event == event]


def test_each_launch_fitted_the_budget_when_it_was_made_and_the_retry_does_not():
    first, second, third = lines("attempt_recorded")
    fits = [account(*until(line)) for line in (first, second, third)]
    assert [each.shortfall("main") for each in fits] == [None] * 3
    assert [round(each.spent["gpu_h"], 2) for each in fits] == [2.25, 3.69, 4.68]
    assert [each.limit["gpu_h"] for each in fits] == [15.0, 20.0, 20.0]
    last = account(encoded(ID).registration, encoded(ID).loaded.state)
    assert last.spent["gpu_h"] == pytest.approx(6.58) and last.expected["main"] == {"gpu_h": 14.9}
    assert last.shortfall("main") == (
        "6.58 gpu_h are spent and a launch of main should cost 14.9: 21.48 > 20"
    )  # fmt: skip


def test_without_the_price_of_a4_the_relaunch_would_not_have_fitted():
    second = lines("attempt_recorded")[1]
    registration, state = encoded(ID).loaded.versions[3].registration, until(second)[1]
    assert "16.29 > 15" in str(account(registration, state).shortfall("main"))


@pytest.mark.parametrize(("hours", "fits"), [(1.9, False), (0.43, False), (0.42, True)])
def test_the_retry_would_have_fitted_had_the_last_run_burned_less(hours, fits):
    state = encoded(ID).loaded.state
    *others, last = state.attempts
    cheaper = replace(state, attempts=(*others, replace(last, end={**(last.end or {}), "gpu_h": hours})))
    assert (account(encoded(ID).registration, cheaper).shortfall("main") is None) == fits


def test_the_refusal_of_the_retry_is_on_record():
    refusals = [entry.data for entry in encoded(ID).loaded.entries if entry.event == "gate_refused"]
    (refusal,) = [each for each in refusals if each["gate"] is None]
    told = [each["what"] for each in refusal["refusals"]]
    assert any("21.48 > 20" in what for what in told)
    assert any("step_002000_v2 is not there" in what for what in told) and len(told) == 3


def test_the_gate_in_the_first_wave_halts_and_a4_goes_on():
    first = lines("attempt_recorded")[0]
    assert until(first)[1].name == "ACTIVE" and until(first + 1)[1].name == "HALTED"
    a4 = lines("amended")[3]
    assert until(a4)[1].name == "HALTED" and until(a4 + 1)[1].name == "ACTIVE"
    ends = [(a.data["how"], a.hours) for a in encoded(ID).loaded.state.attempts]
    assert ends == [("stopped", 1.2), ("killed", 0.33), ("out of memory", 1.9)]


def test_the_lane_closed_without_a_primary_read():
    state = encoded(ID).loaded.state
    assert state.name == "CLOSED" and state.verdict is not None and state.verdict["verdict"] == "INCONCLUSIVE"
    assert "Made by other software: 3 of 3 attempts." in state.verdict["sentence"]
    assert verdict_of(encoded(ID).loaded.effective, state).verdict == "INCONCLUSIVE"
    # An exam that aborts leaves no verdict on the claim at all, whatever was read later; so does a band that nobody
    # overrode.
    gates = {**state.gates, "competence": {**state.gates["competence"], "decision": "ABORT"}}
    assert verdict_of(encoded(ID).loaded.effective, replace(state, gates=gates)).verdict == "INVALID"
    assert verdict_of(encoded(ID).loaded.effective, replace(state, once_overridden=())).verdict == "INVALID"


def test_what_the_amendments_changed_is_what_was_published():
    paths_of = [{op["path"] for op in a.ops if op["op"] == "set"} for a in encoded(ID).loaded.effective.amendments]
    config = [{path for path in each if path.startswith("config")} for each in paths_of]
    assert config == [
        set(),
        {"config.policy.checkpoint"},
        {
            "config.policy.checkpoint", "config.geometry.train_seed_base", "config.tripwires.knockaway_baseline",
            "config.gates.mixed_frac", "config.gates.idle_device",
        },
        set(),
        {"config.policy.joint_frame"},
    ]  # fmt: skip
    last = encoded(ID).registration.config
    assert (last["optim"]["lr"], last["loss"]["kl_beta"], last["geometry"]["advantage_clip"]) == (1e-6, 1.0, 2.0)
    assert (last["loss"]["clip_low"], last["loss"]["clip_high"], last["run"]["steps"]) == (0.8, 1.28, 10)


# ---------------------------------------------------------------------------------------- what was documented otherwise
def refused_with(path: str, value, amendments: int = 5) -> list[str]:
    """What the linter says of the registration with one value as the documents had it."""
    plain = dict(encoded(ID).loaded.versions[amendments].plain)
    changed = apply([Op("set", read_path(path), lookup(plain, read_path(path)), value)], plain)
    return [f"{f.where}: {f.what}" for f in findings(start(changed, "test").registration)]


def test_a_bar_on_the_flow_head_cannot_activate_a_run_of_the_token_head():
    assert refused_with("measurements[base_count].head", "flow", amendments=0) == [
        "measurements[base_count].head: a primary read, a gate or a falsifier rests on another head than the claim's"
    ]


def test_a_run_of_the_flow_head_is_no_run_of_the_claim():
    told = refused_with("claim.head", "flow")
    assert told[0] == "claim.head: the run trains the head 'ar', the claim is about 'flow'"


def test_the_diagnosis_with_its_scenes_is_refused_because_they_are_trained_on():
    told = refused_with("measurements[diagnosis].seeds", "2000-2007")
    assert told[0] == "measurements[diagnosis].seeds: 8 seeds are trained on, first 2000 (rung main, arm baseline)"
    assert "0/8 has P(X <= 0) = 0.513 > 0.05: it can never PASS" in told[1]  # eight episodes could show nothing


def test_the_draft_budget_does_not_hold_the_ladder_with_its_legs():
    assert "the plan needs 14.9 gpu_h (1 arms), the pool holds 12" in refused_with("budget.gpu_h", 12.0)[0]


def test_a_streak_on_a_captured_baseline_needs_a_wave_more():
    assert refused_with("config.run.steps", 3)[0] == (
        "config.tripwires.knockaway: the armed wire knockaway needs 4 waves, and the rung main has 3: it cannot fire"
    )


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """The draft alone, in a repository of its own, frozen as it was with no checkpoint here."""
    made = Bench.make(tmp_path / "repo")
    monkeypatch.setenv("VLA_RL_EXPERIMENTS", str(made.experiments))
    monkeypatch.setattr(Place, "here", classmethod(lambda cls: made.place()))
    monkeypatch.chdir(made.root)
    source = encoded(ID).loaded.versions[0].registration
    made.draft(DRAFT.read_text(), ID)
    assert prereg("freeze", ID, "--absent", *source.meta.composed_from.overrides) == 0
    made.commit("Freeze")
    return made


def activated(bench) -> None:
    done = [f"--done={item.id}=x" for item in encoded(ID).loaded.versions[0].registration.activation.checklist]
    assert prereg("activate", ID, *done) == 0


def exam(bench, wins: int, head: str = "ar") -> str:
    path = bench.root / "outputs" / "exam.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"counts": {"success": [wins, 100]}, "head": head, "temperature": 0.0}))
    return str(path)


def test_a_verdict_on_the_flow_head_is_not_taken_for_the_exam(draft, capsys):
    activated(draft)
    says = "of the head flow, and base_count is registered for ar"
    refused(capsys, 2, "read", ID, "competence", "--from", exam(draft, 44, "flow"), says=says)


def test_without_the_checkpoint_a_launch_says_exactly_what_is_missing(draft, capsys):
    activated(draft)
    told = refused(capsys, 4, "launch", ID, "--check", says="2 things stand against launching")
    assert "grasp-sft-stage-c-endpoint is not there" in told and "the gate competence is not judged" in told


def test_with_a_checkpoint_it_is_launchable_once_the_exam_is_passed(draft, capsys):
    activated(draft)
    words = ("--reason", "the checkpoint is here", "--kind", "scientific", "--data-seen", "none")
    assert prereg("amend", ID, "--set", "config.policy.checkpoint=bundled:tiny_full", "--repin", *words) == 0
    draft.commit("Amend")
    assert prereg("read", ID, "competence", "--from", exam(draft, 20)) == 0
    assert prereg("launch", ID, "--check") == 0


@pytest.mark.parametrize("wins", [19, 4])
def test_an_exam_that_is_not_passed_holds_the_run_back(draft, capsys, wins):
    activated(draft)
    assert prereg("read", ID, "competence", "--from", exam(draft, wins)) == 0
    refused(capsys, 4, "launch", ID, "--check", says="the gate competence says " + ("BAND" if wins == 19 else "ABORT"))
    refused(capsys, 4, "override", ID, "competence", "--reason", "x")  # none is registered in the draft


def test_a_hypothesis_cannot_follow_the_bar_down(draft, capsys):
    lower = ("amend", ID, "--set", "claim.hypothesis=From 7 of 100 on", "--reason", "A3", "--kind", "scientific")
    refused(capsys, 2, *lower, "--data-seen", "none", says="claim.hypothesis is closed for good")


def test_another_clutter_than_the_stated_one_is_refused(draft, capsys):
    overrides = encoded(ID).loaded.versions[0].registration.meta.composed_from.overrides
    draft.draft(DRAFT.read_text(), "E2")
    patched = [*overrides, "sim.look.clutter=patches"]
    says = "the run does not render the look 'documented_v3': clutter differ"
    refused(capsys, 2, "freeze", "E2", "--absent", "--check", *patched, says=says)
