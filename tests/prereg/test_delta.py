"""Differences of documents: exact in both directions, typed, addressed by id, and refused where they do not fit."""

import random

import pytest
from documents import mapping, variant

from vla_rl.errors import ConfigError, UsageError
from vla_rl.prereg.canonical import canonical, same
from vla_rl.prereg.delta import Op, apply, diff, lookup, overlaps, read_path, set_values, write_path


def test_applying_the_difference_gives_the_other_document_to_the_type():
    rng = random.Random(7)
    changed = 0
    for _ in range(4_000):
        a = mapping(rng)
        b = variant(rng, a) if rng.random() < 0.8 else mapping(rng)
        b = b if isinstance(b, dict) else {"b": b}
        before = canonical(a)
        ops = diff(a, b)
        assert same(apply(ops, a), b), (a, b, ops)
        assert canonical(a) == before, "the document itself was changed"
        assert [Op.read(op.plain()) for op in ops] == ops
        changed += bool(ops)
        assert bool(ops) != same(a, b)
    assert changed > 2_000


def test_records_are_addressed_by_their_id_and_other_lists_are_one_value():
    a = {"reads": [{"id": "p", "rule": {"n": 20}}, {"id": "s", "rule": {"n": 5}}], "steps": [1, 2]}
    b = {"reads": [{"id": "p", "rule": {"n": 100}}, {"id": "t", "rule": {"n": 5}}], "steps": [1, 3]}
    assert [(op.op, write_path(op.path)) for op in diff(a, b)] == [
        ("remove", "reads[s]"), ("set", "reads[p].rule.n"), ("add", "reads[t]"), ("set", "steps"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "before, after", [(1, 1.0), (1, True), (0, False), (0.0, 0), (None, False), ("1", 1), (0.0, -0.0)]
)
def test_values_of_different_types_differ(before, after):
    assert diff({"x": before}, {"x": after})
    op = Op("set", read_path("x"), before, 5)
    with pytest.raises(ConfigError):
        apply([op], {"x": after})


def test_a_change_does_not_apply_where_something_else_stands():
    with pytest.raises(ConfigError, match="the change was made from 1"):
        apply([Op("set", read_path("a.b"), 1, 2)], {"a": {"b": 3}})
    with pytest.raises(ConfigError, match="nothing to change"):
        apply([Op("remove", read_path("a.c"), 1)], {"a": {"b": 3}})
    with pytest.raises(ConfigError, match="already"):
        apply([Op("add", read_path("a.b"), after=1)], {"a": {"b": 3}})
    with pytest.raises(ConfigError, match="nothing at a.x"):
        apply([Op("add", read_path("a.x.y"), after=1)], {"a": {"b": 3}})
    with pytest.raises(ConfigError, match="the id that its path names"):
        apply([Op("add", read_path("r[q]"), after={"id": "z"})], {"r": [{"id": "p"}]})


@pytest.mark.parametrize("there", [[1, 2], [{"name": "p"}], [{"id": 1}], [{"id": "p"}, {"id": "p"}], {"id": "p"}, "p"])
def test_a_record_is_put_among_records_with_ids_and_nowhere_else(there):
    with pytest.raises(ConfigError, match="no list of records"):
        apply([Op("add", read_path("r[q]"), after={"id": "q"})], {"r": there})


@pytest.mark.parametrize("text", ["a", "a.b", "reads[primary].rule.n", 'levers["optim.lr"]', 'a["x[y]"].b', "r[x y].z"])
def test_paths_survive_reading_and_writing(text):
    assert write_path(read_path(text)) == text


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a.", "a[", "a[]", "a b", "a]b"])
def test_what_is_no_path_is_refused(text):
    with pytest.raises(UsageError):
        read_path(text)


def test_overlapping_paths_are_those_that_lead_into_one_another():
    inside, other = read_path("reads[a].rule.n"), read_path("reads[b]")
    assert overlaps(inside, read_path("reads[a]")) and overlaps(read_path("reads"), inside)
    assert not overlaps(inside, other)


def test_only_leaves_that_exist_can_be_set():
    document = {"optim": {"lr": 1e-6}, "eval": {"at_steps": [1]}}
    assert [op.after for op in set_values(document, {"optim.lr": 3e-7}, where="--set")] == [3e-7]
    assert set_values(document, {"optim.lr": 1e-6}, where="--set") == []
    for path in ("optim", "optim.rate", "eval.at_steps.x"):
        with pytest.raises(ConfigError):
            set_values(document, {path: 1}, where="--set")
    assert lookup(document, read_path("eval.at_steps")) == [1]


def test_one_component_takes_the_place_of_another_as_a_whole_and_no_section_does():
    document = {"reward": {"_target_": "a.V1", "bonus": 1.0, "floor": None}, "optim": {"lr": 1e-6}}
    (op,) = set_values(document, {"reward": {"_target_": "a.V2", "bonus": 2.0}}, where="set")
    assert apply([op], document)["reward"] == {"_target_": "a.V2", "bonus": 2.0}
    for values in ({"reward": {"bonus": 2.0}}, {"optim": {"lr": 2e-6}}, {"optim": {"_target_": "a.V2"}}):
        with pytest.raises(ConfigError, match="is a section, not a value"):
            set_values(document, values, where="set")
