"""The transition matrix: each start under each objective goes on or is told what to do; no head goes stale unsaid.

The table of docs/sft.md is read and compared cell by cell.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from expert_support import taught
from hf_support import write_model
from policy_support import TASK
from release_support import TAG, write_release
from sft_support import SIZES, tiny_twin
from test_released import edit_json, edit_weights

from vla_rl.errors import ConfigError
from vla_rl.policy.expert_files import has_expert, new_expert
from vla_rl.policy.graft import give_action_tokens
from vla_rl.policy.heads import HeadState
from vla_rl.policy.parts import read_parts
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.sources import Sources
from vla_rl.sft.dataset import Demonstrations
from vla_rl.sft.transitions import (
    FRESH_TWIN,
    OTHER_MODEL,
    Objective,
    Start,
    check_settings,
    check_transition,
    expert_to_train,
    heads_after,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "sft.md"
OBJECTIVES = {
    "`ar`": Objective("ar"),
    "`flow`": Objective("flow"),
    "`flow`, insulated": Objective("flow", insulate=True),
    "`joint`": Objective("joint"),
    "`joint`, insulated": Objective("joint", insulate=True),
}
STALE = {"ar": HeadState("joint", stale=True), "flow": HeadState("joint", stale=True)}
OTHER = "`sft.objective=ar`"  # the only way out of some cells


def twin_on_disk(directory: Path, demos: Demonstrations, *, expert: bool, stale: str | None = None) -> Start:
    """A twin as a run would have left it."""
    twin = tiny_twin(demos)
    if expert:
        taught(new_expert(twin, SIZES, seed=0))
    heads = {"ar": HeadState("ar"), **({"flow": HeadState("joint")} if expert else {})}
    twin.heads = heads if stale is None else {**heads, stale: STALE[stale]}
    twin.save(directory)
    return Start.of(read_parts(directory, Sources()))


def release_on_disk(directory: Path, demos: Demonstrations, *, expert: bool) -> Start:
    write_release(directory, tiny_twin(demos).codec)
    if not expert:
        bare = {"action_mode": "discrete", "add_action_expert": False}
        edit_json(directory / "config.json", lambda config: config.update(bare))
        edit_weights(directory, lambda w: [w.pop(name) for name in list(w) if "action_expert" in name])
    return Start.of(read_parts(directory, Sources(norm_tag=TAG)))


def other_family_on_disk(directory: Path, demos: Demonstrations) -> Start:
    twin, model = tiny_twin(demos), write_model(directory / "SmolVLM", "smolvlm")
    policy = give_action_tokens(model, codec=twin.codec, stats=twin.stats, task=TASK, seed=0, dtype=torch.float32)
    policy.save(directory / "policy")
    return Start.of(read_parts(directory / "policy", Sources()))


@pytest.fixture(scope="module")
def starts(demos: Demonstrations, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Start]:
    """What lies on a disk, and what is not there yet."""
    place = tmp_path_factory.mktemp("starts")
    return {
        "fresh twin": FRESH_TWIN,
        "model without action tokens": OTHER_MODEL,
        "policy of another family": other_family_on_disk(place / "other", demos),
        "release without expert": release_on_disk(place / "bare", demos, expert=False),
        "twin, tokens only": twin_on_disk(place / "tokens", demos, expert=False),
        "both heads trained": twin_on_disk(place / "both", demos, expert=True),
        "release": release_on_disk(place / "release", demos, expert=True),
        "flow head stale": twin_on_disk(place / "flow", demos, expert=True, stale="flow"),
        "token head stale": twin_on_disk(place / "ar", demos, expert=True, stale="ar"),
    }


def documented() -> dict[tuple[str, str], str]:
    """The table of the docs: (start, objective) -> its cell."""
    lines = DOCS.read_text().split("## Transition matrix")[1].split("\n## ")[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, *body = [row for row in table if not set(row[0]) <= {"-"}]
    return {
        (start, objective): cell
        for names, *cells in body
        for start in names.split("; ")
        for objective, cell in zip(head[1:], cells, strict=True)
    }


STARTS = (
    "fresh twin", "model without action tokens", "policy of another family", "release without expert",
    "twin, tokens only", "both heads trained", "release", "flow head stale", "token head stale",
)  # fmt: skip


def test_the_table_of_the_docs_has_every_cell_and_no_other():
    assert documented().keys() == set(itertools.product(STARTS, OBJECTIVES))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("start", STARTS)
def test_a_cell_is_as_documented_and_each_key_that_it_names_leads_on(starts, start: str, objective: str):
    found, wanted, cell = starts[start], OBJECTIVES[objective], documented()[start, objective]
    if cell == "yes":
        check_transition(found, wanted, fresh_expert=False, allow_stale=False)
        return
    with pytest.raises(ConfigError) as refused:
        check_transition(found, wanted, fresh_expert=False, allow_stale=False)
    assert refused.value.remedy is not None and refused.value.exit_code == 2
    ways = cell.removeprefix("no: ").split(", ")
    assert all(way.strip("`") in refused.value.remedy for way in ways)
    if ways == [OTHER]:  # no key opens it
        with pytest.raises(ConfigError, match="no place"):
            check_transition(found, wanted, fresh_expert=True, allow_stale=True)
    for way in ways:
        match way:
            case "`sft.expert=fresh`":  # a further key may be needed for the token head
                check_transition(found, wanted, fresh_expert=True, allow_stale=True)
            case "`sft.allow_stale_head=true`":
                check_transition(found, wanted, fresh_expert=False, allow_stale=True)
            case "`sft.insulate=true`":
                check_transition(found, Objective("flow", insulate=True), fresh_expert=False, allow_stale=False)
            case "`sft.objective=joint`":
                check_transition(found, Objective("joint"), fresh_expert=False, allow_stale=False)
            case "`sft.objective=ar`":
                check_transition(found, Objective("ar"), fresh_expert=False, allow_stale=False)
            case "`sft.base`":
                pass
            case _:
                raise AssertionError(f"the docs name {way}")


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("start", STARTS)
def test_no_head_goes_stale_unless_it_was_allowed_and_none_is_called_trained_that_was_not(
    starts, start: str, objective: str, fresh: bool, allow: bool
):
    found, wanted = starts[start], OBJECTIVES[objective]
    try:
        check_transition(found, wanted, fresh_expert=fresh, allow_stale=allow)
    except ConfigError:
        return
    before = {head: HeadState("joint", stale=True) for head in found.stale}
    after = heads_after(before, wanted, has_expert=found.expert or wanted.has_flow)
    newly = {head for head, state in after.items() if state.stale} - found.stale
    assert not newly or allow
    assert found.trained or wanted.has_tokens  # a token head that was drawn a moment ago is trained now
    assert found.expert or not wanted.has_flow or fresh or not found.trained


@pytest.mark.parametrize(
    ("objective", "trained", "stale"),
    [
        ("`ar`", {"ar"}, {"flow"}),
        ("`flow`", {"flow"}, {"ar"}),
        ("`flow`, insulated", {"flow"}, set()),
        ("`joint`", {"ar", "flow"}, set()),
        ("`joint`, insulated", {"ar", "flow"}, set()),
    ],
)
def test_afterwards_it_is_known_what_trained_each_head_and_which_was_left_behind(objective, trained, stale):
    wanted = OBJECTIVES[objective]
    for before in ({}, {"ar": HeadState("rl"), "flow": HeadState("flow")}):
        after = heads_after(before, wanted, has_expert=True)
        state = HeadState(wanted.kind, wanted.insulate)
        assert {head for head, each in after.items() if each == state} == trained
        assert {head for head, each in after.items() if each.stale} == stale
    assert heads_after({}, Objective("ar"), has_expert=False) == {"ar": HeadState("ar")}


def test_training_a_stale_head_again_beside_its_new_trunk_makes_it_whole():
    assert not heads_after(STALE, Objective("flow", insulate=True), has_expert=True)["flow"].stale
    assert heads_after(STALE, Objective("flow", insulate=True), has_expert=True)["ar"].stale
    assert not any(state.stale for state in heads_after(STALE, Objective("joint"), has_expert=True).values())


@pytest.mark.parametrize(
    ("objective", "settings", "key", "remedy"),
    [
        (Objective("ar", insulate=True), {}, "sft.insulate", "leave sft.insulate away"),
        (Objective("ar"), {"fresh_expert": True}, "sft.expert", "sft.objective=joint"),
        (Objective("ar"), {"expert_lr": 1e-4}, "sft.expert_lr", "leave sft.expert_lr away"),
        (Objective("ar"), {"eval_head": "flow"}, "sft.eval_head", "sft.eval_head=ar"),
        (Objective("ar", ce_weight=0.5), {}, "sft.ce_weight", "sft.objective=joint"),
        (Objective("flow", ce_weight=0.5), {}, "sft.ce_weight", "sft.objective=joint"),
        (Objective("flow", insulate=True), {"eval_head": "ar"}, "sft.eval_head", "sft.eval_head=flow"),
    ],
)
def test_settings_that_say_nothing_under_an_objective_are_refused(objective, settings, key, remedy):
    plain = {"fresh_expert": False, "expert_lr": None, "eval_head": None}
    with pytest.raises(ConfigError) as refused:
        check_settings(objective, **{**plain, **settings})
    assert refused.value.where == key and remedy in (refused.value.remedy or "")


def test_settings_that_say_something_are_taken():
    for objective in OBJECTIVES.values():
        flow, rate = objective.has_flow, 1e-4 if objective.has_flow else None
        check_settings(objective, fresh_expert=flow, expert_lr=rate, eval_head=None)
    check_settings(Objective("joint", 0.5, True), fresh_expert=False, expert_lr=None, eval_head="ar")
    check_settings(Objective("flow"), fresh_expert=False, expert_lr=None, eval_head="ar")


# ------------------------------------------------------------------------------------------------------- the expert
def test_a_stored_expert_is_trained_on_and_one_drawn_anew_keeps_its_sizes(demos: Demonstrations, tmp_path: Path):
    start = twin_on_disk(tmp_path / "base", demos, expert=True)
    base = load_policy(checkpoint=str(tmp_path / "base"), device="cpu", serve_head="flow", task=TASK)
    assert base.expert is not None
    stored = base.expert.state_dict()

    def trained(*, fresh: bool, seed: int = 0) -> dict[str, torch.Tensor]:
        policy = load_policy(checkpoint=str(tmp_path / "base"), device="cpu", serve_head="ar", task=TASK)
        assert policy.expert is None and has_expert(policy)
        return expert_to_train(policy, start, fresh=fresh, width=64, seed=seed).state_dict()

    kept, drawn, again = trained(fresh=False), trained(fresh=True), trained(fresh=True)
    other = trained(fresh=True, seed=1)
    assert all(torch.equal(kept[name], stored[name]) for name in stored)
    assert {name: w.shape for name, w in drawn.items()} == {name: w.shape for name, w in stored.items()}
    assert not drawn["final_layer.linear.weight"].any() and kept["final_layer.linear.weight"].any()
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    assert not torch.equal(drawn["action_embed.weight"], other["action_embed.weight"])


def test_a_new_expert_has_the_width_that_was_asked_for_in_heads_of_32(twin: VlaPolicy):
    with pytest.raises(ConfigError, match=r"40 wide[\s\S]*sft\.expert_width"):
        expert_to_train(twin, FRESH_TWIN, fresh=False, width=40, seed=0)
    expert = expert_to_train(twin, FRESH_TWIN, fresh=False, width=64, seed=0)
    assert (expert.config.sizes.width, expert.config.sizes.heads, expert.config.layers) == (64, 2, 2)
