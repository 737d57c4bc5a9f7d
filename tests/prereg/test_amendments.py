"""Amendments: what they may change, from what, what they cost, and that none of it can be talked down."""

import dataclasses
import json

import pytest
from bench import DRAFT, prereg, refused

from vla_rl.errors import ConfigError, UsageError
from vla_rl.prereg import yamlfile
from vla_rl.prereg.amendments import extend, propose, read_amendment, start
from vla_rl.prereg.delta import Op, lookup, read_path
from vla_rl.prereg.document import plain
from vla_rl.prereg.effects import outdated
from vla_rl.prereg.folder import Folder

FACTS = {"author": "Ada", "created_utc": "2026-01-01T00:00:00+00:00", "reason": "because"}
WHY = ("--reason", "because", "--kind", "scientific", "--data-seen")


@pytest.fixture(scope="session")
def document(_active_template):
    """With more of everything than the draft has: constants, exclusions, guardrails, a ladder."""
    loaded = Folder(_active_template.experiments, "E1").load().effective
    base = dict(loaded.plain)
    rule = {**base["reads"][1]["rule"], "line": "most"}
    extra = {"never_pool": False, "role": "guardrail", "question": "Within bounds?", "rule": rule, "id": "bound"}
    mean = {"kind": "all_of", "of": ["progress", "clip"]}
    both = {"never_pool": False, "role": "secondary", "question": "Both?", "rule": mean, "id": "both"}
    excluded = {"id": "struck", "measurement": "after", "field": "reset_strikes", "comparator": "above", "value": 0,
                "max_share": 0.2}  # fmt: skip
    return {
        **base, "reads": [*base["reads"], extra, both], "constants": {"most": 0.3, "later": None},
        "deferred": [{"id": "later", "read": "clip", "by": "main"}], "exclusions": [excluded],
    }  # fmt: skip


@pytest.fixture
def frozen(document):
    return start(document, "registration.yaml")


def change(before, path, value):
    return [Op("set", read_path(path), lookup(before.plain, read_path(path)), value)]


def remove(before, path):
    return [Op("remove", read_path(path), lookup(before.plain, read_path(path)))]


def made(before, ops, kind="scientific", seen="outcomes", **more):
    return propose(before, ops, kind=kind, data_seen=seen, **FACTS, **more)


# ------------------------------------------------------------------------------------------ what may be changed
@pytest.mark.parametrize(
    "path, value",
    [("claim.hypothesis", "another"), ("claim.direction", "decrease"), ("meta.id", "E2"), ("meta.title", "x"),
     ("meta", {}), ("claim", {})],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["clerical", "operational", "scientific"])
def test_closed_paths_are_closed_to_every_kind(frozen, path, value, kind):
    with pytest.raises(UsageError, match="closed for good"):
        made(frozen, change(frozen, path, value), kind=kind, seen="none")
    with pytest.raises(UsageError, match="closed for good"):
        made(frozen, remove(frozen, path), kind=kind, seen="none")


def test_an_amendment_is_made_from_what_stands_there_to_the_type(frozen):
    lr = frozen.registration.config["optim"]["lr"]
    for before in (lr * 2, str(lr), None):
        with pytest.raises(ConfigError, match="the change was made from"):
            made(frozen, [Op("set", read_path("config.optim.lr"), before, 1.0)])
    steps = frozen.registration.config["run"]["steps"]
    with pytest.raises(ConfigError, match="the change was made from"):
        made(frozen, [Op("set", read_path("config.run.steps"), float(steps), 2)])
    for op in (Op("set", read_path("config.optim.rate"), None, 1.0), Op("remove", read_path("reads[nobody]"), {}),
               Op("add", read_path("config.optim.lr"), after=1.0)):  # fmt: skip
        with pytest.raises(ConfigError):
            made(frozen, [op])


def test_an_amendment_leads_to_a_registration_or_is_refused(frozen):
    for path, value in (("budget.wall_h", "much"), ("reads[clip].rule.kind", "magic"), ("looks.max", 1.5)):
        with pytest.raises(ConfigError):
            made(frozen, change(frozen, path, value))
    with pytest.raises(UsageError, match="changes nothing"):
        made(frozen, [])


def test_a_clerical_amendment_changes_words_and_nothing_else(frozen):
    words = {"summary": "x", "reads[clip].question": "x", "falsifiers[worse].text": "x", "arms[baseline].label": "x"}
    for path, value in words.items():
        assert made(frozen, change(frozen, path, value), kind="clerical").effects == []
    for path, value in {
        "claim.population": "everything", "claim.data_seen": "nothing", "reads[clip].role": "record", "looks.max": 2,
        "config.optim.lr": 1.0, "budget.wall_h": 9.0, "reads[clip].rule.line": 0.5, "config.run.name": "x",
        "falsifiers[worse].fires_on": "PASS",
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match="clerical"):
            made(frozen, change(frozen, path, value), kind="clerical")
    for ops in (remove(frozen, "summary"), [Op("add", read_path("arms[x].label"), after="x")]):
        with pytest.raises(UsageError, match="clerical"):
            made(frozen, ops, kind="clerical")


# ----------------------------------------------------------------------------------------------- what they cost
EVERY = ["both", "bound", "clip", "progress"]  # of a trained policy


@pytest.mark.parametrize(
    "path, value, effects",
    [
        ("config.optim.lr", 1.0, EVERY),
        ("config.run.threads", 2, []),  # of the invariance list
        ("pins.code.package_tree", "0" * 40, EVERY),
        ("budget.wall_h", 9.0, []),
        ("summary", "x", []),
        ("reads[clip].rule.line", 0.5, ["both", "clip"]),
        ("reads[clip].question", "x", ["both", "clip"]),
        ("reads[bound].role", "secondary", ["both", "bound", "progress"]),
        ("constants.most", 0.5, ["bound"]),
        ("exclusions[struck].value", 1, ["both", "progress"]),
        ("measurements[after].seeds", "10000-10001", ["both", "progress"]),
        ("falsifiers[worse].fires_on", "PASS", ["both", "progress"]),
        ("claim.smallest_effect", 0.1, ["both", "bound", "clip", "money", "progress"]),
        ("claim.family", 0.05, ["both", "progress"]),
        ("claim.unit", "training_seed", ["both", "progress"]),
        ("claim.population", "everything", ["both", "progress"]),
        ("looks.max", 2, ["both", "bound", "clip", "money", "progress"]),
    ],
)
def test_a_change_after_outcomes_costs_the_reads_that_it_touches_and_no_others(frozen, path, value, effects):
    assert made(frozen, change(frozen, path, value)).effects == effects
    for seen in ("none", "training"):
        assert made(frozen, change(frozen, path, value), seen=seen).effects == []


@pytest.mark.parametrize(
    "path, effects",
    [("reads[bound]", ["both", "progress"]), ("falsifiers[worse]", ["both", "progress"]),
     ("exclusions[struck]", ["both", "progress"]), ("reads[money]", [])],
)  # fmt: skip
def test_what_could_have_spoken_against_the_claim_is_not_taken_out_for_nothing(frozen, path, effects):
    assert made(frozen, remove(frozen, path)).effects == effects


@pytest.mark.parametrize(
    "path, value, effects",
    [
        ("config.policy.checkpoint", "bundled:tiny_full", [*EVERY, "exam"]),
        ("config.sim.max_ticks", 91, [*EVERY, "exam"]),
        ("pins.checkpoint.name", "bundled:tiny_full", [*EVERY, "exam"]),
        ("config.optim.lr", 1.0, EVERY),
        ("pins.code.package_tree", "0" * 40, EVERY),
    ],
)
def test_a_read_of_the_base_is_of_the_policy_and_world_that_were_registered(document, path, value, effects):
    rule = {**document["reads"][1]["rule"], "measurement": "before", "metric": "success", "statistic": "count"}
    exam = {**document["reads"][1], "id": "exam", "rule": rule}
    frozen = start({**document, "reads": [*document["reads"], exam]}, "r")
    assert made(frozen, change(frozen, path, value)).effects == sorted(effects)
    assert made(frozen, change(frozen, path, value), seen="training").effects == []


def test_a_new_read_after_outcomes_is_exploratory(frozen):
    read = {**plain(frozen.registration.read("clip")), "id": "again"}
    assert made(frozen, [Op("add", read_path("reads[again]"), after=read)]).effects == ["again"]
    assert made(frozen, [Op("add", read_path("reads[again]"), after=read)], seen="training").effects == []


def test_a_read_is_exploratory_for_good(frozen):
    first = made(frozen, change(frozen, "reads[clip].rule.line", 0.5))
    after = extend(frozen, first, "01")
    back = extend(after, made(after, change(after, "reads[clip].rule.line", 0.2)), "02")
    assert back.plain == frozen.plain and back.digest == frozen.digest
    assert back.exploratory == {"clip": 1, "both": 1}


def test_a_run_that_would_be_another_is_not_the_registered_one_any_more(frozen):
    def hit(path, value):
        after = extend(frozen, made(frozen, change(frozen, path, value), seen="training"), "01")
        return outdated(frozen.registration, after.registration)

    assert hit("config.optim.lr", 1.0) == ["main/baseline"] == hit("ladder[main].set", {"optim.lr": 1.0})
    assert hit("config.run.threads", 2) == hit("budget.wall_h", 9.0) == hit("reads[clip].rule.line", 0.5) == []
    assert hit("invariance", ["optim.lr"]) == []
    both = [*change(frozen, "invariance", ["optim.lr"]), *change(frozen, "config.optim.lr", 1.0)]
    after = extend(frozen, made(frozen, both, seen="training"), "01")
    assert outdated(frozen.registration, after.registration) == ["main/baseline"], "the list as it stood before"


def test_a_run_that_went_on_from_another_run_is_outdated_with_it(document):
    """R0 from the base; R1 from R0; R2 from R1; side from the base."""
    rungs = [
        {"id": id, "set": {}, "starts_from": start, "proceed_if": []}
        for id, start in (("R0", "base"), ("R1", "R0"), ("R2", "R1"), ("side", "base"))
    ]
    measured = [{**m, "rung": "R2"} for m in document["measurements"]]
    deferred = [{**each, "by": "R2"} for each in document["deferred"]]
    frozen = start({**document, "ladder": rungs, "measurements": measured, "deferred": deferred}, "r")

    def hit(*ops):
        return outdated(frozen.registration, extend(frozen, made(frozen, ops, seen="training"), "01").registration)

    def ran(*rungs):
        return [f"{rung}/baseline" for rung in rungs]

    assert hit(*change(frozen, "ladder[R0].set", {"optim.lr": 1.0})) == ran("R0", "R1", "R2")
    assert hit(*change(frozen, "ladder[R1].set", {"optim.lr": 1.0})) == ran("R1", "R2")
    assert hit(*change(frozen, "ladder[side].set", {"optim.lr": 1.0})) == ran("side")
    assert hit(*change(frozen, "ladder[R1].starts_from", "base")) == ran("R1", "R2")
    assert hit(*remove(frozen, "ladder[R0]"), *change(frozen, "ladder[R1].starts_from", "base")) == ran(
        "R0", "R1", "R2"
    )
    assert hit(*change(frozen, "ladder[R1].proceed_if", ["clip"])) == []


# ------------------------------------------------------------------------------------- allowances and fallbacks
def test_an_allowance_is_for_its_paths_and_its_times(frozen):
    price = change(frozen, "config.optim.lr", 1.0)
    first = made(frozen, price, allowance="reprice")
    assert first.effects == []
    with pytest.raises(UsageError, match="does not cover budget.wall_h"):
        made(frozen, [*price, *change(frozen, "budget.wall_h", 2.0)], allowance="reprice")
    with pytest.raises(UsageError, match="does not cover config.optim"):
        made(
            frozen, [Op("remove", read_path("config.optim"), frozen.registration.config["optim"])], allowance="reprice"
        )
    with pytest.raises(UsageError, match="no allowance 'other'"):
        made(frozen, price, allowance="other")
    after = extend(frozen, first, "01")
    with pytest.raises(UsageError, match="it is used up"):
        made(after, change(after, "config.loss.kl_beta", 1.0), allowance="reprice")
    assert made(after, change(after, "config.loss.kl_beta", 1.0)).effects == EVERY, (
        "without it the change has its price"
    )


def test_an_allowance_does_not_pay_for_a_change_of_reads(document):
    paths = {**document["allowances"][0], "paths": ["reads[clip].rule"]}
    frozen = start({**document, "allowances": [paths]}, "r")
    assert made(frozen, change(frozen, "reads[clip].rule.line", 0.5), allowance="reprice").effects == ["both", "clip"]


def test_a_fallback_is_what_was_registered_to_the_value(frozen):
    ops = change(frozen, "config.optim.lr", 1.0e-5)
    assert made(frozen, ops, fallback="gentle").effects == []
    for other in (change(frozen, "config.optim.lr", 2.0e-5), [*ops, *change(frozen, "budget.wall_h", 2.0)],
                  change(frozen, "budget.wall_h", 2.0)):  # fmt: skip
        with pytest.raises(UsageError, match="the fallback gentle sets"):
            made(frozen, other, fallback="gentle")
    with pytest.raises(UsageError, match="is not registered"):
        made(frozen, ops, fallback="rough")


def test_a_fallback_without_values_is_only_a_new_registration(document):
    none = [{"id": "gentle", "text": "give up", "set": None}]
    frozen = start({**document, "fallbacks": none}, "r")
    with pytest.raises(UsageError, match="only as a new registration"):
        made(frozen, change(frozen, "config.optim.lr", 1.0e-5), fallback="gentle")


def add(path, **value):
    return [Op("add", read_path(path), after={"id": path.partition("[")[2][:-1], "text": "t", **value})]


@pytest.mark.parametrize("wider", [
    lambda f: change(f, "invariance", [*f.registration.invariance, "optim.lr"]),
    lambda f: add("allowances[more]", times=1, paths=["config"]),
    lambda f: change(f, "allowances[reprice].times", 2),
    lambda f: change(f, "allowances[reprice].paths", ["config"]),
    lambda f: add("fallbacks[more]", set={"optim.lr": 1.0}),
    lambda f: change(f, "fallbacks[gentle].set", {"optim.lr": 1.0}),
], ids=["invariance", "an allowance", "its times", "its paths", "a fallback", "its values"])  # fmt: skip
def test_what_excuses_a_change_is_not_widened_after_outcomes_were_seen(frozen, wider):
    early = made(frozen, wider(frozen), seen="training")
    with pytest.raises(UsageError, match="not widened after outcomes"):
        made(frozen, wider(frozen))
    with pytest.raises(UsageError, match="not widened after outcomes"):
        extend(frozen, dataclasses.replace(early, data_seen="outcomes"), "01")


def test_excuses_may_be_given_up_and_worded_anew_after_outcomes_were_seen(frozen):
    fewer = [
        *change(frozen, "invariance", ["run.threads"]), *remove(frozen, "allowances[reprice]"),
        *change(frozen, "fallbacks[gentle].text", "x"),
    ]  # fmt: skip
    assert made(frozen, fewer).effects == []


def test_a_deferred_constant_is_settled_once_and_alone(frozen):
    settle = change(frozen, "constants.later", 0.1)
    first = made(frozen, settle, settles="later")
    assert first.effects == []
    with pytest.raises(UsageError, match="changes nothing else"):
        made(frozen, [*settle, *change(frozen, "budget.wall_h", 2.0)], settles="later")
    with pytest.raises(UsageError, match="is not deferred"):
        made(frozen, change(frozen, "constants.most", 0.1), settles="most")
    after = extend(frozen, first, "01")
    with pytest.raises(UsageError, match="is set already"):
        made(after, change(after, "constants.later", 0.2), settles="later")


# ---------------------------------------------------------------------------------------------------- the chain
def test_two_amendments_chain_by_digest(frozen):
    first = made(frozen, change(frozen, "config.optim.lr", 1.0))
    one = extend(frozen, first, "01")
    second = made(one, change(one, "config.optim.lr", 2.0))
    two = extend(one, second, "02")
    assert (first.parent, first.result, second.parent, second.result) == (
        frozen.digest, one.digest, one.digest, two.digest,
    )  # fmt: skip
    assert len({frozen.digest, one.digest, two.digest}) == 3 and [a.number for a in two.amendments] == [1, 2]
    with pytest.raises(ConfigError, match="not number 1"):
        extend(frozen, second, "02")
    with pytest.raises(ConfigError, match="another state"):
        extend(frozen, dataclasses.replace(second, number=1), "01")
    assert read_amendment(yamlfile.load(yamlfile.dump(plain(second)).encode(), "02"), "02") == second


@pytest.mark.parametrize(
    "lie, says",
    [({"result": "0" * 64}, "digest"), ({"effects": []}, "effects"), ({"effects": [*EVERY, "money"]}, "effects"),
     ({"data_seen": "none"}, "effects"), ({"kind": "clerical"}, "clerical"), ({"registration": "E2"}, "of E2"),
     ({"allowance": "reprice"}, "effects"), ({"settles": "later"}, "settling")],
)  # fmt: skip
def test_what_an_amendment_states_of_itself_is_derived_again(frozen, lie, says):
    honest = made(frozen, change(frozen, "config.optim.lr", 1.0))
    with pytest.raises(UsageError, match=says):
        extend(frozen, dataclasses.replace(honest, **lie), "01")


# ------------------------------------------------------------------------------------------ on the command line
def test_what_was_seen_cannot_be_understated(launched, capsys):
    change = ("amend", "E1", "--set", "budget.wall_h=2.0", *WHY)
    refused(capsys, 2, *change, "none", says="a run was launched")
    assert prereg(*change, "training", "--check") == 0
    assert prereg("read", "E1", "clip") == 0
    for stated in ("none", "training"):
        refused(capsys, 2, *change, stated, says="outcomes were opened")
    assert prereg(*change, "outcomes") == 0 and prereg("verify", "E1") == 0


def test_an_amendment_after_the_last_primary_read_is_refused(launched, capsys):
    assert prereg("read", "E1", "progress") == 0
    refused(capsys, 2, "amend", "E1", "--set", "budget.wall_h=2.0", *WHY, "outcomes", says="COMPLETE")


def test_an_amended_registration_is_one_that_could_have_been_frozen(active, capsys):
    for assignment, says in (
        ("measurements[after].seeds=300-301", "measurements[after].seeds"),
        ("claim.head=flow", "claim.head"),
        ("budget.wall_h=0.01", "budget.wall_h"),
        ("reads[clip].rule.measurement=nothing", "there is no measurement"),
        ("config.geometry.train_seed_base=10000", "are trained on"),
    ):
        refused(capsys, 2, "amend", "E1", "--set", assignment, *WHY, "none", says=("would be wrong", says))
    assert not (active.folder() / "amendments").exists() and "amended" not in active.events()


def test_an_amendment_is_written_once_committed_and_then_launched(active, capsys):
    amend = ("amend", "E1", "--set", "config.optim.lr=1e-6", *WHY, "none")
    assert prereg(*amend, "--check") == 0 and not (active.folder() / "amendments").exists()
    capsys.readouterr()
    assert prereg(*amend, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["number"] == 1 and told["ops"] == [{"op": "set", "path": "config.optim.lr", "from": 3e-05, "to": 1e-06}]
    refused(capsys, 2, *amend, says="already")
    refused(capsys, 4, "launch", "E1", "--check", says="not committed as it is: amendments/01.yaml")
    active.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0
    assert prereg("amend", "E1", "--set", "config.optim.lr=1e-7", *WHY, "none") == 0
    assert [entry["data"].get("number") for entry in active.ledger() if entry["event"] == "amended"] == [1, 2]
    assert prereg("verify", "E1") == 0


def test_a_changed_run_has_to_be_run_again(launched, capsys):
    """A finished run of another learning rate is not the registered one any more."""
    assert prereg("amend", "E1", "--set", "config.optim.lr=1e-6", *WHY, "training") == 0
    launched.commit("Amend E1")
    assert launched.ledger()[-1]["data"]["outdated"] == ["main/baseline"]
    assert prereg("launch", "E1", "--check") == 0
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    refused(capsys, 4, "launch", "E1", "--resume", says="no attempt to go on with")


def test_evidence_of_a_run_that_is_another_now_is_not_judged(launched, capsys):
    assert prereg("read", "E1", "clip") == 0
    amended = ("amend", "E1", "--set", "config.optim.lr=1e-6", "--allowance", "reprice", *WHY, "outcomes")
    assert prereg(*amended) == 0
    add = "reads[more]={id: more, role: secondary, question: q, never_pool: false, rule: {kind: record, measurement: training, metric: loss, statistic: last}}"  # noqa: E501
    assert prereg("amend", "E1", "--add", add, *WHY, "outcomes") == 0
    refused(capsys, 4, "read", "E1", "more", says="an amendment has since changed what is run")


def test_code_that_was_mended_is_pinned_anew(active, capsys):
    (active.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    active.commit("mend")
    refused(capsys, 4, "launch", "E1", "--check", says="pins.code.package_tree")
    repin = ("amend", "E1", "--repin", "--reason", "mended", "--kind", "operational", "--data-seen", "none")
    assert prereg(*repin) == 0
    active.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0
    ops = yamlfile.load((active.folder() / "amendments/01.yaml").read_bytes(), "01")["ops"]
    assert {op["path"] for op in ops} >= {"pins.code.package_tree", "pins.code.base_commit"}
    assert not any(op["path"].startswith(("pins.command", "pins.draft")) for op in ops)


def test_a_constant_is_settled_to_the_estimate_of_its_read(bench, capsys):
    text = DRAFT.replace(
        "falsifiers:", "constants: {hours: null}\ndeferred: [{id: hours, read: money, by: main}]\nfalsifiers:"
    )
    bench.frozen("E1", text)
    refused(capsys, 4, "launch", "E1", "--check", says="the constant hours had to be set before main")
    settle = ("amend", "E1", "--settle", "hours", "--reason", "read", "--kind", "operational", "--data-seen")
    refused(capsys, 2, *settle, "none", says="has no estimate yet")
    (bench.root / "outputs").mkdir(exist_ok=True)
    (bench.root / "outputs/spend.json").write_text('{"values": {"hours": 0.25}}')
    assert prereg("read", "E1", "money", "--from", "outputs/spend.json") == 0
    assert prereg(*settle, "outcomes") == 0
    assert Folder(bench.experiments, "E1").load().registration.constants == {"hours": 0.25}
    bench.commit("Settle")
    assert prereg("launch", "E1", "--check") == 0 and prereg("verify", "E1") == 0


def test_differences_are_shown_as_table_json_and_markdown(active, capsys):
    for value in ("1e-6", "1e-7"):
        assert prereg("amend", "E1", "--set", f"config.optim.lr={value}", *WHY, "none") == 0
    capsys.readouterr()

    def said(*arguments):
        assert prereg("diff", *arguments) == 0
        return capsys.readouterr().out

    parts = json.loads(said("E1", "--json"))["deltas"]
    assert [[(op["path"], op["from"], op["to"]) for op in part["ops"]] for part in parts] == [
        [("config.optim.lr", 3e-5, 1e-6)], [("config.optim.lr", 1e-6, 1e-7)], [("config.optim.lr", 3e-5, 1e-7)],
    ]  # fmt: skip
    (between,) = json.loads(said("E1@1", "E1@2", "--json"))["deltas"]
    assert between["ops"] == [{"op": "set", "path": "config.optim.lr", "from": 1e-6, "to": 1e-7}]
    assert json.loads(said("E1@2", "E1@2", "--json"))["deltas"][0]["ops"] == []
    assert len(json.loads(said("E1@1", "--json"))["deltas"]) == 1
    text = said("E1@0", "E1@2", "--md")
    assert "| " in text and "config.optim.lr" in text and "1e-07" in text
    assert "config.optim.lr" in said("E1")
    refused(capsys, 2, "diff", "E1@3", says="has no amendment 3")
    refused(capsys, 2, "diff", "E1@x", says="has no amendment x")


def test_an_amendment_that_states_less_than_was_seen_is_found_by_verify(launched, capsys, monkeypatch):
    from vla_rl.cli.prereg import amending

    assert prereg("read", "E1", "clip") == 0
    monkeypatch.setattr(amending, "_check_seen", lambda state, stated: None)
    assert prereg("amend", "E1", "--set", "reads[progress].rule.level=0.9", *WHY, "none") == 0
    refused(capsys, 5, "verify", "E1", says="states that none was seen, it was outcomes")


@pytest.mark.parametrize("kind", ["clerical", "operational"])
def test_a_label_that_goes_over_to_another_arm_takes_no_measurement_along(bench, capsys, kind):
    arms = "arms:\n  - {label: one, set: {run.seed: 1}}\n  - {label: two, set: {run.seed: 2}}\n"
    text = DRAFT.replace("policy: trained}", "policy: trained, arm: one}").replace("wall_h: 1.0", "wall_h: 9.0")
    bench.frozen("E1", text + arms)
    one, two = (arm.id for arm in Folder(bench.experiments, "E1").load().registration.arms[1:])
    why = ("--reason", "r", "--kind", kind, "--data-seen", "none")
    swap = ("--set", f"arms[{one}].label=two", "--set", f"arms[{two}].label=one")
    refused(capsys, 2, "amend", "E1", *swap, *why, says="one would be another arm than the one that after is of")
    assert prereg("amend", "E1", "--set", f"arms[{two}].label=second", *why) == 0  # nothing goes by that label
