"""The linter: every finding has a registration that has exactly this wrong with it, and a new draft has nothing."""

import copy

import pytest
from bench import DRAFT, TINY, prereg, refused

from vla_rl.prereg.delta import Op, apply, lookup, read_path
from vla_rl.prereg.document import arm_id, read_registration
from vla_rl.prereg.lint import findings


def found(document):
    return findings(read_registration(document, "r"))


def put(document, path, value):
    """A copy with another value; `add:` before a path that is new."""
    if path.startswith("add:"):
        return apply([Op("add", read_path(path[4:]), after=value)], document)
    return apply([Op("set", read_path(path), lookup(document, read_path(path)), value)], document)


def all_of(document, **values):
    for path, value in values.items():
        document = put(document, path, value)
    return document


def arm(**values):
    values = {name.replace("__", "."): value for name, value in values.items()}
    return {"id": arm_id(values), "label": " ".join(f"{k}={v}" for k, v in values.items()), "set": values}


BOTH = {"measurements[before].seeds", "measurements[after].seeds"}  # measured on the same seeds
BASELINE = {"id": "baseline", "label": "baseline", "set": {}}
WIRE = {
    "kind": "window",
    "measurement": "training",
    "metric": "loss",
    "comparator": "above",
    "line": 1.0,
    "consecutive": 3,
}
BANDS = [
    {"label": "ABORT", "status": "FAIL", "at_most": 2},
    {"label": "BAND", "status": "INCONCLUSIVE", "at_least": 3, "at_most": 4},
    {"label": "PASS", "status": "PASS", "at_least": 5},
]


def read(id, rule, role="secondary"):
    return {"id": id, "role": role, "question": "q", "never_pool": False, "rule": rule}


def measurement(id, **values):
    blank = {
        "id": id,
        "kind": "evaluation",
        "policy": "trained",
        "played_by": "read",
        "step": None,
        "seeds": "10000-10005",
        "temperature": 0.0,
        "arm": None,
        "rung": "main",
        "head": None,
        "look": None,
    }
    return {**blank, **values}


def guarded(document, anchor, metric):
    """With a guard of the trained policy against an anchor of the base."""
    rule = {
        "kind": "binomial_tail", "measurement": "after", "rate": "a", "metric": "success_strict",
        "requires": "not_against", "effect": 0.3, "alpha": 0.2,
    }  # fmt: skip
    of_base = {"kind": "record", "measurement": "anchor", "metric": metric, "statistic": "share"}
    return all_of(
        document,
        **{
            "add:measurements[anchor]": measurement(policy="base", **anchor),
            "add:reads[anchor]": read("anchor", of_base, role="record"),
            "add:reads[guard]": read("guard", rule, role="guardrail"),
            "add:constants.a": 0.5,
            "deferred": [{"id": "a", "read": "anchor", "by": "main"}],
        },
    )


def either(document, kind, *, both):
    """With a primary read made of two, one of them a guard, or `both`."""
    guard = {**lookup(document, read_path("reads[progress].rule")), "requires": "not_against"}
    changed = {
        "add:reads[guard]": read("guard", guard),
        "add:reads[whole]": read("whole", {"kind": kind, "of": ["progress", "guard"]}, role="primary"),
        "reads[progress].role": "secondary",
    }
    return all_of(document, **changed, **({"reads[progress].rule.requires": "not_against"} if both else {}))


def rung(id, **values):
    return {"id": id, "set": {}, "starts_from": "base", "proceed_if": [], **values}


def bands(*changes, measurement="after"):
    rows = copy.deepcopy(BANDS)
    for i, key, value in changes:
        rows[i][key] = value
    return {
        "kind": "bands",
        "measurement": measurement,
        "metric": "success_strict",
        "statistic": "count",
        "bands": rows,
    }


def more(document, *measurements):
    return put(document, "measurements", [*document["measurements"], *measurements])


def two_rungs(document, **first):
    """R0 and R1, everything measured on R1."""
    measurements = [{**m, "rung": "R1"} for m in document["measurements"]]
    expected = {name: {"gpu_h": None, "wall_h": 0.1} for name in ("R0", "R1")}
    return all_of(
        document, **{"ladder": [rung("R0", **first), rung("R1", starts_from="R0")], "measurements": measurements,
                     "budget.expected": expected},
    )  # fmt: skip


def gate(rule, before="main"):
    return {"id": "g", "text": "t", "rule": rule, "before": before, "override": False}


def looked(document, *, role="primary", steps=2, **values):
    """Two updates, and one more read, of an evaluation beside the one after the last of them."""
    rule = {"kind": "interval", "measurement": "extra", "metric": "success", "line": 0.5, "effect": 0.2}
    extra = {"config.run.steps": steps, "add:reads[more]": read("more", rule, role)}
    return all_of(more(document, measurement("extra", **values)), **extra)


def with_p(document, family):
    """The primary read has a p-value."""
    rule = {"kind": "mcnemar", "before": "before", "after": "after", "metric": "success_strict"}
    return all_of(document, **{"claim.family": family, "reads[progress].rule": rule})


def with_arms(document, *arms, **more):
    return all_of(document, arms=[BASELINE, *arms], **{"budget.wall_h": 9.0}, **more)


CLUSTERED = {"kind": "cluster_bootstrap", "before": "before", "after": "after", "metric": "progress_final_cm"}


def replicated(document, *arms):
    """A claim over training seeds: every arm is one."""
    after = {**next(m for m in document["measurements"] if m["id"] == "after"), "arm": "*"}
    return with_arms(
        document, *arms,
        **{"measurements[after]": after, "reads[progress].rule": CLUSTERED, "claim.unit": "training_seed"},
    )  # fmt: skip


TWO_LOOKS = "decisions rest on 2 looks at the 6 seeds from 10000 on, and 1 is registered"
ALL_ARMS = {"kind": "cluster_bootstrap", "before": "before", "after": "extra", "metric": "progress_final_cm"}

# (what is wrong with it, where that is found, what is said)
WRONG = {
    # -------------------- names and references
    "an id that is given twice": (
        lambda d: put(d, "reads", [*d["reads"], d["reads"][2]]),
        "reads and gates",
        "given to 2",
    ),
    "an id that is none": (
        lambda d: put(d, "add:falsifiers[..]", {**d["falsifiers"][0], "id": ".."}),
        "falsifiers",
        "no id",
    ),
    "an empty id": (lambda d: more(d, measurement("")), "measurements", "no id"),
    "two arms of one label": (
        lambda d: with_arms(d, {**arm(optim__lr=1.0), "label": "baseline"}),
        "arms",
        "2 arms are called",
    ),
    "no primary read": (lambda d: put(d, "reads[progress].role", "secondary"), "reads", "no read is primary"),
    "an unknown measurement": (
        lambda d: put(d, "reads[money].rule.measurement", "none"),
        "money.rule",
        "no measurement 'none'",
    ),
    "an unknown read in a rule": (
        lambda d: put(d, "add:reads[both]", read("both", {"kind": "all_of", "of": ["progress", "none"]})),
        "both.rule",
        "no read 'none'",
    ),
    "an unknown constant": (lambda d: put(d, "reads[clip].rule.line", "none"), "clip.rule", "no constant 'none'"),
    "an unknown read of a falsifier": (
        lambda d: put(d, "falsifiers[worse].read", "none"),
        "falsifiers[worse].read",
        "no read 'none'",
    ),
    "an unknown rung of a gate": (
        lambda d: put(
            d,
            "gates",
            [{"id": "g", "text": "t", "rule": bands(measurement="spend"), "before": "none", "override": False}],
        ),
        "gates[g].before",
        "no rung 'none'",
    ),
    "an unknown rung of a measurement": (
        lambda d: put(d, "measurements[spend].rung", "none"),
        "measurements[spend].rung",
        "no rung 'none'",
    ),
    "an unknown arm of a measurement": (
        lambda d: put(d, "measurements[training].arm", "none"),
        "measurements[training].arm",
        "no arm 'none'",
    ),
    "an unknown rung of the budget": (
        lambda d: put(d, "add:budget.expected.none", {"gpu_h": None, "wall_h": 0.1}),
        "budget.expected.none",
        "no rung",
    ),
    "an unknown measurement of an exclusion": (
        lambda d: put(
            d,
            "exclusions",
            [{"id": "e", "measurement": "none", "field": "f", "comparator": "above", "value": 0, "max_share": 0.5}],
        ),
        "exclusions[e]",
        "no measurement 'none'",
    ),
    "a rung of a name that means something else": (
        lambda d: all_of(
            d,
            **{
                "ladder": [rung("base")],
                "measurements": [{**m, "rung": "base"} for m in d["measurements"]],
                "budget.expected": {"base": {"gpu_h": None, "wall_h": 0.1}},
            },
        ),
        "ladder",
        "base is what",
    ),
    "a rung that starts from a later one": (
        lambda d: put(d, "ladder", [rung("main", starts_from="main")]),
        "ladder[main].starts_from",
        "no earlier rung",
    ),
    "an unknown read of a deferred constant": (
        lambda d: all_of(d, **{"add:constants.c": 1.0, "deferred": [{"id": "c", "read": "none", "by": "main"}]}),
        "deferred[c].read",
        "no read 'none'",
    ),
    "an unknown rung of a deferred constant": (
        lambda d: all_of(d, **{"add:constants.c": 1.0, "deferred": [{"id": "c", "read": "money", "by": "none"}]}),
        "deferred[c].by",
        "no rung 'none'",
    ),
    "an unknown read of a boundary": (
        lambda d: put(d, "ladder", [rung("main", proceed_if=["none"])]),
        "ladder[main].proceed_if",
        "no read 'none'",
    ),
    "a constant that nobody sets": (
        lambda d: put(d, "add:constants.c", None),
        "constants.c",
        "no value and is not deferred",
    ),
    "a deferred constant that is none": (
        lambda d: put(d, "deferred", [{"id": "c", "read": "clip", "by": "main"}]),
        "deferred[c]",
        "no constant 'c'",
    ),
    "an arm that learns from whatever lies in a directory": (
        lambda d: with_arms(d, arm(experience__demos="outputs/demos/x", experience__rows=8)),
        "config.experience.recipe_sha256",
        "nothing says what must be in there",
    ),
    # -------------------- variations
    "a rung that sets an unknown key": (
        lambda d: put(d, "ladder[main].set", {"optim.rate": 1.0}),
        "ladder[main].set",
        "optim.rate",
    ),
    "a fallback that sets a section": (
        lambda d: put(d, "fallbacks[gentle].set", {"optim": 1.0}),
        "fallbacks[gentle].set",
        "is a section",
    ),
    "an invariance of an unknown key": (
        lambda d: put(d, "invariance", ["pool.nothing"]),
        "invariance",
        "nothing at pool.nothing",
    ),
    "an invariance that is varied": (lambda d: put(d, "invariance", ["optim.lr"]), "invariance", "optim.lr is varied"),
    "an allowance of an unknown key": (
        lambda d: put(d, "allowances[reprice].paths", ["config.optim.rate"]),
        "allowances[reprice].paths",
        "config.optim.rate",
    ),
    "an allowance of nothing in the registration": (
        lambda d: put(d, "allowances[reprice].paths", ["config.optim.lr", "reads[none].rule"]),
        "allowances[reprice].paths",
        "there is nothing at reads[none]",
    ),
    "an arm that is not what its id says": (
        lambda d: with_arms(d, {**arm(optim__lr=1.0), "id": "0" * 12}),
        "arms[optim.lr=1.0].id",
        "its id is",
    ),
    "an arm beside its levers": (
        lambda d: with_arms(d, arm(optim__lr=1.0), levers={"optim.lr": [2.0]}),
        "arms[optim.lr=1.0].set",
        "no registered value",
    ),
    "a value that is looked up later": (
        lambda d: put(d, "config.run.name", "${oc.env:HOME}"),
        "config.run.name",
        "is not a value",
    ),
    "a value that is missing": (lambda d: put(d, "config.run.name", "???"), "config.run.name", "is not a value"),
    "an arm that is looked up later": (
        lambda d: with_arms(d, arm(run__name="${now:%H}")),
        "arms[run.name=${now:%H}].set.run.name",
        "is not a value",
    ),
    "a lever that is looked up later": (
        lambda d: put(d, "levers", {"run.name": ["${now:%H}"]}),
        "levers.run.name",
        "is not a value",
    ),
    "a look of a measurement that is none": (
        lambda d: more(d, measurement("extra", look="plain,lens")),
        "measurements[extra].look",
        "no option of sim/look",
    ),
    "a look that is none": (lambda d: put(d, "claim.look", "plain,lens"), "claim.look", "no option of sim/look"),
    "another policy in an arm": (
        lambda d: with_arms(d, arm(policy__checkpoint="x")),
        "arms[policy.checkpoint=x].set",
        "is pinned",
    ),
    "another policy in a lever": (
        lambda d: put(d, "levers", {"policy.revision": ["x"]}),
        "levers",
        "is pinned",
    ),
    "a place in a fallback": (
        lambda d: put(d, "fallbacks[gentle].set", {"run.resume": "x"}),
        "fallbacks[gentle].set",
        "prereg launch chooses",
    ),
    "a place in a rung": (
        lambda d: put(d, "ladder[main].set", {"run.dir": "x"}),
        "ladder[main].set",
        "prereg launch chooses",
    ),
    "a target that only begins like a package": (
        lambda d: put(d, "config.reward._target_", "vla_rl_evil.Reward"),
        "config.reward._target_",
        "outside the allowed",
    ),
    "a target outside the packages": (
        lambda d: put(d, "config.reward._target_", "os.system"),
        "config.reward._target_",
        "outside the allowed",
    ),
    "a target outside the packages in an arm": (
        lambda d: with_arms(d, arm(reward___target_="os.system")),
        "arms[reward._target_=os.system].set.reward._target_",
        "outside",
    ),
    # -------------------- the claim and the run
    "another head than is trained": (lambda d: put(d, "claim.head", "flow"), "claim.head", "trains the head 'ar'"),
    "another protocol than is played": (lambda d: put(d, "claim.protocol", "sim10"), "claim.protocol", "plays"),
    "an effect without a direction": (
        lambda d: put(put(d, "claim.direction", "none"), "reads[progress].rule.direction", "increase"),
        "claim.smallest_effect",
        "no smallest effect",
    ),
    "a rule without a direction where the claim has none": (
        lambda d: all_of(d, **{"claim.direction": "none", "claim.smallest_effect": None}),
        "reads[progress].rule",
        "no direction",
    ),
    "an effect in two units": (
        lambda d: put(
            d,
            "add:reads[x]",
            read("x", {"kind": "mcnemar", "before": "before", "after": "after", "metric": "success_strict"}, "primary"),
        ),
        "claim.smallest_effect",
        "progress_final_cm and success_strict",
    ),
    "a claim about training that rests on one run": (
        lambda d: put(d, "claim.unit", "training_seed"),
        "reads[progress].rule",
        "paired_bootstrap says nothing of them",
    ),
    "training seeds that differ in more than their seed": (
        lambda d: replicated(d, arm(run__seed=1), arm(run__seed=2, optim__lr=1.0)),
        "reads[progress].rule",
        "differ in optim.lr",
    ),
    "levers in the place of training seeds": (
        lambda d: replicated(d, arm(optim__lr=1.0)),
        "reads[progress].rule",
        "differ in optim.lr",
    ),
    "a training seed that is there twice": (
        lambda d: replicated(d, arm(run__seed=1), arm(run__seed=0)),
        "reads[progress].rule",
        "have the training seeds 0, 1, 0",
    ),
    "levers under other training seeds": (
        lambda d: put(
            replicated(d, arm(run__seed=1), arm(run__seed=2), arm(run__seed=3)),
            "reads[progress].rule",
            {
                **CLUSTERED,
                "before": "after",
                "before_arms": ["baseline", arm(run__seed=1)["id"]],
                "after_arms": [arm(run__seed=seed)["id"] for seed in (2, 3)],
            },
        ),
        "reads[progress].rule",
        "have the training seeds 0, 1 and 2, 3",
    ),
    "a head that the run does not play": (
        lambda d: more(d, measurement("extra", played_by="run", head="flow")),
        "measurements[extra].head",
        "asks for another head",
    ),
    "a protocol that the run does not play": (
        lambda d: more(d, measurement("extra", played_by="run", protocol="sim100b-h10")),
        "measurements[extra].protocol",
        "asks for another protocol",
    ),
    "a primary read of another look": (
        lambda d: all_of(
            d,
            **{
                "measurements[before]": measurement("before", policy="base", look="lens"),
                "measurements[after]": measurement("after"),
            },
        ),
        "measurements[before].look",
        "another look than the claim's",
    ),
    "seeds that the run does not play": (
        lambda d: more(d, measurement("extra", played_by="run", seeds="10000-10003")),
        "measurements[extra].seeds",
        "the run evaluates 10000-10005",
    ),
    "a temperature that the run does not play": (
        lambda d: more(d, measurement("extra", played_by="run", temperature=0.7)),
        "measurements[extra].temperature",
        "at temperature 0.0",
    ),
    "a step that the run does not play": (
        lambda d: more(d, measurement("extra", played_by="run", step=7)),
        "measurements[extra].step",
        "evaluates after 0, 1 updates",
    ),
    "a base after an update": (
        lambda d: put(d, "measurements[before].step", 1),
        "measurements[before].step",
        "before the first update",
    ),
    "seeds that are trained on": (lambda d: put(d, "config.geometry.train_seed_base", 9999), BOTH, "are trained on"),
    "seeds that are trained on in another arm": (
        lambda d: with_arms(d, arm(geometry__train_seed_base=10005)),
        BOTH,
        "are trained on, first 10005",
    ),
    "seeds of another use": (
        lambda d: more(d, measurement("extra", seeds="100000")),
        "measurements[extra].seeds",
        "100000",
    ),
    "seeds that something was decided on, behind a compound read": (
        lambda d: all_of(
            more(d, measurement("extra", seeds="300-305")),
            **{
                "add:reads[some]": read("some", bands(measurement="extra")),
                "add:reads[all]": read("all", {"kind": "all_of", "of": ["some", "clip"]}, "primary"),
                "reads[progress].rule.effect": 0.5,
            },
        ),
        "measurements[extra].seeds",
        "seed 300 can confirm nothing",
    ),
    "primary reads on seeds that something was decided on": (
        lambda d: all_of(d, **{"config.eval.seeds": "300-305", **{path: "300-305" for path in BOTH}}),
        BOTH,
        "seed 300 can confirm nothing",
    ),
    "a gate that rests on another head": (
        lambda d: all_of(
            more(d, measurement("extra", policy="base", head="flow")),
            gates=[gate(bands(measurement="extra"))],
        ),
        "measurements[extra].head",
        "another head than the claim's",
    ),
    "a gate that rests on a base of another head that was handed in": (
        lambda d: all_of(
            more(d, measurement("extra", kind="recorded", policy="base", head="flow", seeds="0-99")),
            gates=[gate(bands(measurement="extra"))],
        ),
        "measurements[extra].head",
        "another head than the claim's",
    ),
    "a gate that rests on another head through other reads": (
        lambda d: all_of(
            more(d, measurement("extra", policy="base", head="flow")),
            **{
                "add:reads[some]": read("some", bands(measurement="extra")),
                "add:reads[all]": read("all", {"kind": "all_of", "of": ["some"]}),
                "gates": [gate({"kind": "any_of", "of": ["all"]})],
            },
        ),
        "measurements[extra].head",
        "another head than the claim's",
    ),
    "a falsifier that rests on another head": (
        lambda d: all_of(
            more(d, measurement("extra", head="flow")),
            **{
                "add:reads[fall]": read("fall", bands(measurement="extra"), "guardrail"),
                "add:falsifiers[other]": {"id": "other", "read": "fall", "fires_on": "FAIL", "text": "it fell"},
            },
        ),
        "measurements[extra].head",
        "another head than the claim's",
    ),
    "a primary read that rests on another look through others": (
        lambda d: all_of(
            more(d, measurement("extra", look="lens")),
            **{
                "add:reads[some]": read("some", bands(measurement="extra")),
                "add:reads[both]": read("both", {"kind": "all_of", "of": ["some", "clip"]}, "primary"),
                "reads[progress].rule.effect": 0.5,
            },
        ),
        "measurements[extra].look",
        "another look than the claim's",
    ),
    # -------------------- the rules
    "three rows in a row of one": (
        lambda d: put(d, "add:reads[wire]", read("wire", WIRE)),
        "reads[wire].rule",
        "it can never fire",
    ),
    "three rows in a row of two": (
        lambda d: all_of(d, **{"config.run.steps": 2, "add:reads[wire]": read("wire", WIRE)}),
        "reads[wire].rule",
        "3 rows in a row of 2 rows",
    ),
    "bands that overlap": (
        lambda d: put(d, "add:reads[band]", read("band", bands((1, "at_most", 5)))),
        "reads[band].rule",
        "several bands",
    ),
    "bands with a gap": (
        lambda d: put(d, "add:reads[band]", read("band", bands((1, "at_least", 4)))),
        "reads[band].rule",
        "no band",
    ),
    "a band that cannot be reached": (
        lambda d: put(d, "add:reads[band]", read("band", bands((1, "at_most", 6), (2, "at_least", 7)))),
        "reads[band].rule",
        "never be reached",
    ),
    "a threshold that cannot fail": (
        lambda d: put(
            d,
            "add:reads[x]",
            read(
                "x",
                {
                    "kind": "threshold",
                    "measurement": "after",
                    "metric": "success_strict",
                    "statistic": "count",
                    "comparator": "at_least",
                    "line": 0,
                },
            ),
        ),
        "reads[x].rule",
        "it can never FAIL",
    ),
    "a test with too few pairs": (
        lambda d: put(
            d,
            "add:reads[x]",
            read(
                "x",
                {"kind": "mcnemar", "before": "before", "after": "after", "metric": "success_strict", "alpha": 0.001},
            ),
        ),
        "reads[x].rule",
        "",
    ),
    "a primary read that decides nothing": (
        lambda d: put(d, "reads[money].role", "primary"),
        "reads[money].rule",
        "only records",
    ),
    "a guardrail that decides nothing": (
        lambda d: put(d, "reads[money].role", "guardrail"),
        "reads[money].rule",
        "only records",
    ),
    "a rule for one run on every arm": (
        lambda d: with_arms(put(d, "measurements[training].arm", "*"), arm(optim__lr=1.0)),
        "reads[clip].rule",
        "training is made for 2 arms, and threshold judges one run",
    ),
    "reads that need one another": (
        lambda d: all_of(
            d,
            **{
                "add:reads[a]": read("a", {"kind": "any_of", "of": ["b", "clip"]}),
                "add:reads[b]": read("b", {"kind": "any_of", "of": ["a", "clip"]}),
            },
        ),
        {"reads[a].rule", "reads[b].rule"},
        "come back to this one",
    ),
    "reads that need one another at a boundary": (
        lambda d: two_rungs(
            all_of(
                d,
                **{
                    "add:reads[a]": read("a", {"kind": "any_of", "of": ["b", "clip"]}),
                    "add:reads[b]": read("b", {"kind": "any_of", "of": ["a", "clip"]}),
                },
            ),
            proceed_if=["a"],
        ),
        {"reads[a].rule", "reads[b].rule", "ladder[R0].proceed_if"},
        "",
    ),
    "a boundary that needs a later rung": (
        lambda d: two_rungs(d, proceed_if=["clip"]),
        "ladder[R0].proceed_if",
        "clip needs training",
    ),
    "a gate that needs what it stands before": (
        lambda d: put(d, "gates", [{"id": "g", "text": "t", "rule": bands(), "before": "main", "override": False}]),
        "gates[g].rule",
        "g needs after, which is measured on main",
    ),
    "a constant that is read too late": (
        lambda d: all_of(d, **{"add:constants.c": None, "deferred": [{"id": "c", "read": "clip", "by": "main"}]}),
        "deferred[c].read",
        "clip needs training",
    ),
    "a metric that no run writes": (
        lambda d: put(d, "reads[clip].rule.metric", "clip_fracton"),
        "clip.rule.metric",
        "no run writes 'clip_fracton'",
    ),
    "a metric of a gate that no run writes": (
        lambda d: all_of(
            more(d, measurement("extra", policy="base")),
            gates=[gate({**bands(measurement="extra"), "metric": "xyz"})],
        ),
        "g.rule.metric",
        "no run writes 'xyz'",
    ),
    # -------------------- looks and families
    "decisions after each of two numbers of updates": (lambda d: looked(d, step=1), "looks.max", TWO_LOOKS),
    "decisions on the same seeds in other words": (
        lambda d: looked(d, step=1, seeds="10005,10000-10004"),
        "looks.max",
        TWO_LOOKS,
    ),
    "decisions about the same arm in other words": (
        lambda d: looked(d, step=1, arm="baseline"),
        "looks.max",
        TWO_LOOKS,
    ),
    "decisions about all arms and about one of them": (
        lambda d: with_arms(looked(d, step=1, arm="*"), arm(run__seed=1), **{"reads[more].rule": ALL_ARMS}),
        "looks.max",
        TWO_LOOKS,
    ),
    "a decision of a falsifier after another number of updates": (
        lambda d: put(looked(d, step=1, role="secondary"), "falsifiers[worse].read", "more"),
        "looks.max",
        TWO_LOOKS,
    ),
    "decisions on some of the same seeds": (
        lambda d: looked(d, step=1, seeds="10004-10009"),
        "looks.max",
        "2 looks at the 2 seeds from 10004 on",
    ),
    "primary reads that are adjusted without p-values": (
        lambda d: put(d, "claim.family", 0.05),
        "reads[progress].rule",
        "paired_bootstrap has no p-value",
    ),
    "a guard in a family of reads": (
        lambda d: put(
            put(d, "claim.family", 0.05),
            "reads[progress].rule",
            {"kind": "binomial_tail", "measurement": "after", "rate": 0.9, "requires": "not_against", "effect": 0.5},
        ),
        ["reads[progress].rule"] * 2,
        "a guard",
    ),
    "a guard that carries a claim": (
        lambda d: put(d, "reads[progress].rule.requires", "not_against"),
        "reads[progress].rule",
        "cannot carry a claim with the direction increase",
    ),
    "guards that carry a claim together": (
        lambda d: either(d, "all_of", both=True),
        "reads[whole].rule",
        "cannot carry",
    ),
    "a guard as one of two ways": (lambda d: either(d, "any_of", both=False), "reads[whole].rule", "cannot carry"),
    "an anchor of another temperature and metric than what is guarded": (
        lambda d: guarded(d, {"id": "anchor", "temperature": 0.7}, "touched"),
        "reads[guard].rule",
        "its anchor a is of another temperature and metric",
    ),
    "an anchor of other scenes": (
        lambda d: guarded(d, {"id": "anchor", "seeds": "10006-10011"}, "success_strict"),
        "reads[guard].rule",
        "of another seeds than",
    ),
    "a number of reads in the place of a size": (lambda d: with_p(d, 2.0), "claim.family", "2 is no size"),
    "a size that nothing survives": (lambda d: with_p(d, 0.0), "claim.family", "0 is no size"),
    # -------------------- wires and the budget
    "a wire that cannot fire": (
        lambda d: put(d, "config.tripwires.collapse", "armed"),
        "config.tripwires.collapse",
        "needs 3 waves",
    ),
    "a wire that cannot fire beside its own baseline": (
        lambda d: all_of(d, **{"config.run.steps": 3, "config.tripwires.knockaway": "armed"}),
        "config.tripwires.knockaway",
        "needs 4 waves",
    ),
    "a wire of an arm that cannot fire": (
        lambda d: with_arms(d, arm(tripwires__divergence="armed")),
        "config.tripwires.divergence",
        "needs 6 waves",
    ),
    "no budget": (lambda d: put(d, "budget.wall_h", None), "budget", "no limit"),
    "a plan without a price": (
        lambda d: put(d, "budget.expected", {}),
        "budget.expected.main.wall_h",
        "nobody has said",
    ),
    "a budget below the plan": (lambda d: put(d, "budget.wall_h", 0.05), "budget.wall_h", "the pool holds 0.05"),
    "a budget below the plan of all arms": (
        lambda d: put(put(d, "arms", [BASELINE, arm(optim__lr=1.0)]), "budget.wall_h", 0.15),
        "budget.wall_h",
        "(2 arms)",
    ),
}


def test_the_registration_that_is_varied_has_nothing_wrong_with_it(sound):
    assert found(sound) == []
    assert found(two_rungs(sound)) == []
    assert found(with_arms(sound, arm(optim__lr=1.0))) == []
    assert found(guarded(sound, {"id": "anchor"}, "success_strict")) == []
    assert found(either(sound, "all_of", both=False)) == []


@pytest.mark.parametrize("wrong", WRONG)
def test_exactly_what_is_wrong_is_found(sound, wrong):
    change, where, says = WRONG[wrong]
    told = found(change(sound))
    assert told, "nothing was found"
    wanted = [where] if isinstance(where, str) else where
    assert sorted(finding.where for finding in told) == sorted(wanted), told
    assert all(says in finding.what and finding.remedy for finding in told), told


@pytest.mark.parametrize("allowed", [
    lambda d: put(looked(d, step=1), "looks.max", 2), lambda d: looked(d, step=2), lambda d: looked(d),
    lambda d: looked(d, step=1, role="secondary"), lambda d: looked(d, step=1, seeds="10006-10011"),
    lambda d: looked(d, step=0, policy="base"), lambda d: with_p(d, 0.05),
], ids=["registered", "the same", "the last", "informs", "other seeds", "the base", "a p-value"])  # fmt: skip
def test_looks_and_families_that_are_as_they_should_be_are_not_found(sound, allowed):
    assert found(allowed(sound)) == []


def test_replicates_are_judged_together(sound):
    assert found(replicated(sound, arm(run__seed=1), arm(run__seed=2))) == []


def test_a_configuration_that_cannot_run_is_a_finding_and_no_crash(sound):
    told = found(put(sound, "config.eval.at_steps", [7]))
    assert any("no update 7" in finding.what for finding in told)
    told = found(put(sound, "measurements[after].seeds", "x-y"))
    assert told and all(finding.remedy for finding in told)


def test_a_new_draft_has_nothing_wrong_with_it(bench, capsys):
    assert prereg("new", "E7") == 0
    assert prereg("freeze", "E7", "experiment=quickstart", "--check") == 0


def test_a_look_is_stated_and_it_is_the_one_that_is_rendered(bench, capsys):
    bench.draft(DRAFT.replace("look: plain", "look: lens"))
    refused(capsys, 2, "freeze", "E1", *TINY, says=("claim.look", "does not render the look 'lens'"))
    assert prereg("freeze", "E1", *TINY, "sim/look=lens", "--check") == 0
    bench.draft(DRAFT.replace("  look: plain\n", ""))
    refused(capsys, 2, "freeze", "E1", *TINY, says="look")


def test_everything_that_is_wrong_is_told_at_once(bench, capsys):
    text = DRAFT.replace("head: ar", "head: flow").replace("wall_h: 1.0", "wall_h: 0.01")
    bench.draft(text)
    refused(capsys, 2, "freeze", "E1", *TINY, says=("2 things are wrong", "claim.head", "budget.wall_h"))
    assert not (bench.folder() / "registration.yaml").exists()
