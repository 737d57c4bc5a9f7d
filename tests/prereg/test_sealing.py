"""Which evaluations of a run may be told: those that every read which could rest on them has opened."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from vla_rl.prereg.document import read_registration
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.sealing import Seal, by_reads, seal_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
RUN = {"id": "E001-learning", "rung": "main", "arm": "baseline", "attempt": 1, "sealed": True}


@pytest.fixture(scope="module")
def known():
    return Folder(EXPERIMENTS, "E001-learning").load_as_written()


def seen(known, looked, **changed):
    """E001 as if its run played `before` and `after`, `first` were not registered, and `looked` had been opened."""
    document = copy.deepcopy(dict(known.effective.plain))
    kept = [m for m in document["measurements"] if m["id"] in ("before", "after", "training")]
    for m in kept:
        m["played_by"] = "run"
        m.update(changed.get(m["id"], {}))
    document["measurements"] = kept
    document["reads"], document["falsifiers"] = [], []
    registration = read_registration(document, "test")
    entries = [e for e in known.entries if e.event != "look" or (e.data["measurement"], e.data["arm"]) in looked]
    versions = (*known.versions[:-1], replace(known.effective, registration=registration))
    return replace(known, entries=tuple(entries), versions=versions)


def hidden(seal, steps=(0, 20, 40)):
    return [step for step in steps if seal.hides(step)]


def test_a_run_of_its_own_has_no_seal():
    assert seal_of({}, "300-319", EXPERIMENTS) == Seal() and hidden(Seal()) == []


def test_nothing_is_told_before_and_everything_after_the_last_read(known):
    assert hidden(by_reads(seen(known, []), RUN, "10000-10099")) == [0, 20, 40]
    assert hidden(by_reads(seen(known, [("before", None), ("after", None)]), RUN, "10000-10099")) == []


def test_of_a_base_that_was_opened_the_first_evaluation_alone_is_told(known):
    seal = by_reads(seen(known, [("before", None)]), RUN, "10000-10099")
    assert hidden(seal) == [20, 40] and "after" in seal.why and "before" not in seal.why


def test_what_was_opened_of_one_arm_opens_no_other(known):
    arm = next(a.id for a in known.registration.arms if a.label == "seed1")
    loaded = seen(known, [("before", None), ("after", None)])
    assert hidden(by_reads(loaded, {**RUN, "arm": arm}, "10000-10099")) == [20, 40]
    assert hidden(by_reads(loaded, {**RUN, "arm": "gone"}, "10000-10099")) == [20, 40], "nor one that is none any more"


def test_a_base_that_is_measured_of_every_arm_is_opened_arm_by_arm(known):
    arm = next(a.id for a in known.registration.arms if a.label == "seed1")
    loaded = seen(known, [("before", None), ("after", arm)], before={"arm": "*"})
    assert hidden(by_reads(loaded, {**RUN, "arm": arm}, "10000-10099")) == [0, 20]


def test_scenes_that_a_read_will_play_are_sealed_in_a_run_that_plays_them_too(known):
    own = {name: {"played_by": "read"} for name in ("before", "after")}
    assert hidden(by_reads(seen(known, [], **own), RUN, "10050-10060")) == [0, 20, 40]
    for arm in ("baseline", "gone"):
        run = {**RUN, "arm": arm}
        assert hidden(by_reads(seen(known, [], **own), run, "200-219")) == [], "a monitor of the run is not"


def test_an_evaluation_on_the_way_is_opened_by_the_read_of_that_step(known):
    loaded = seen(known, [("before", None), ("after", None)], after={"step": 20})
    more = seen(known, [("before", None)], after={"step": 20})
    assert hidden(by_reads(loaded, RUN, "10000-10099")) == [] and hidden(by_reads(more, RUN, "10000-10099")) == [20, 40]


@pytest.mark.parametrize(("told", "open"), [({"sealed": False}, True), ({"sealed": True}, False), ({}, False)])
def test_where_nobody_can_be_asked_the_launch_decides_and_silence_seals(tmp_path, told, open):
    run = {key: value for key, value in RUN.items() if key != "sealed"} | told
    assert hidden(seal_of(run, "10000-10099", tmp_path)) == ([] if open else [0, 20, 40])
