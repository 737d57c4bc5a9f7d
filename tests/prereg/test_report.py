"""The report of a registration: figures that follow from the evidence, films of what was opened, all of it verified."""

import json
import shutil

import numpy as np
import pytest
from bench import prereg, refused, rehash
from PIL import Image

from vla_rl.report.beforeafter import LIMIT

FIGURES = ["report/curves.svg", "report/funnel.svg", "report/intervals.svg"]


def files(bench):
    folder = bench.folder()
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in (folder / "report").iterdir()}


def test_a_closed_registration_has_its_figures_and_the_report_shows_them(judged):
    assert sorted(files(judged)) == FIGURES
    text = (judged.folder() / "REPORT.md").read_text()
    assert all(f"]({name})" in text for name in FIGURES)
    assert "| before | base | 6 |" in text and "| after | baseline | 6 |" in text
    reported = judged.ledger()[-1]["data"]
    assert sorted(reported["files"]) == FIGURES and reported["films"] == []


def test_the_same_evidence_gives_the_same_bytes_and_no_second_line(judged):
    events, before, text = judged.events(), files(judged), (judged.folder() / "REPORT.md").read_bytes()
    assert prereg("report", "E1") == 0
    assert (judged.events(), files(judged), (judged.folder() / "REPORT.md").read_bytes()) == (events, before, text)
    shutil.rmtree(judged.folder() / "report")
    (judged.folder() / "REPORT.md").unlink()
    assert prereg("verify", "E1") == 5
    assert prereg("report", "E1") == 0 and prereg("verify", "E1") == 0
    assert (judged.events(), files(judged), (judged.folder() / "REPORT.md").read_bytes()) == (events, before, text)


def test_a_report_that_was_a_text_alone_still_verifies_and_is_brought_up_to_date(judged):
    shutil.rmtree(judged.folder() / "report")

    def as_it_was(line):
        line["data"] = {"sha256": line["data"]["sha256"]}

    rehash(judged, len(judged.events()) - 1, as_it_was)
    judged.git("update-ref", "-d", "refs/vla_rl/prereg/E1")
    judged.git("reset", "-q", "--soft", "HEAD~1")  # to before the closing commit, which holds the newer line
    judged.commit("Close E1")
    assert prereg("verify", "E1") == 0
    assert prereg("report", "E1") == 0 and prereg("verify", "E1") == 0
    assert judged.events()[-2:] == ["reported", "reported"] and sorted(files(judged)) == FIGURES


def test_a_figure_that_was_changed_or_put_in_is_named(judged, capsys):
    path = judged.folder() / "report/intervals.svg"
    path.write_bytes(path.read_bytes().replace(b"progress", b"success!"))
    assert str(path) in refused(capsys, 5, "verify", "E1")
    assert prereg("report", "E1") == 0 and prereg("verify", "E1") == 0
    (judged.folder() / "report/more.svg").write_text("<svg/>")
    assert "more.svg" in refused(capsys, 5, "verify", "E1")


def test_nothing_is_drawn_of_what_is_sealed(launched):
    """The run has played everything; a figure appears with the read that opens its evidence, and not before."""
    assert prereg("report", "E1") == 0
    assert not (launched.folder() / "report").exists()
    assert prereg("read", "E1", "clip") == 0 and prereg("report", "E1") == 0
    assert sorted(files(launched)) == ["report/curves.svg"], "of the training waves alone"
    assert b"held out" not in files(launched)["report/curves.svg"].lower()
    assert prereg("read", "E1", "progress") == 0 and prereg("report", "E1") == 0
    assert sorted(files(launched)) == FIGURES
    assert prereg("verify", "E1") == 0


def test_no_seed_is_filmed_before_its_read(launched, capsys):
    refused(capsys, 2, "report", "E1", "--videos", "10000", says=("no read on record", "vla-rl prereg read E1"))
    assert prereg("read", "E1", "clip") == 0
    refused(capsys, 2, "report", "E1", "--videos", "10000", says="no read on record")
    assert prereg("read", "E1", "progress") == 0
    told = refused(capsys, 2, "report", "E1", "--videos", "10000,10006")
    assert "seed 10006" in told and "10000-10005" in told
    assert not (launched.root / "outputs/prereg/E1/films").exists(), "nothing was played"


def test_a_read_of_an_evaluation_on_the_way_opens_no_film_of_the_last_policy(launched, capsys):
    """Only the last policy is kept: its films would be called after another one, and tell what is still sealed."""
    assert prereg("read", "E1", "progress") == 0
    rehash(launched, launched.events().index("attempt_ended"), lambda line: line["data"].update(step=2))
    launched.git("update-ref", "-d", "refs/vla_rl/prereg/E1")
    refused(capsys, 2, "report", "E1", "--videos", "10000", says="no read on record")
    assert not (launched.root / "outputs/prereg/E1/films").exists(), "nothing was played"


def test_a_policy_that_is_not_here_cannot_be_filmed(judged, capsys):
    shutil.rmtree(judged.root / "outputs")
    told = refused(capsys, 4, "report", "E1", "--videos", "10000", says="is not on this machine")
    assert "outputs/prereg/E1" in told
    refused(capsys, 2, "report", "E1", "--arm", "baseline", says="--videos")


@pytest.mark.slow
def test_base_and_trained_policy_are_filmed_on_the_same_seeds(judged, capsys):
    """Real episodes of both policies; the ledger knows the films, and later reports keep them."""
    events = len(judged.events())
    assert prereg("report", "E1", "--videos", "10001,10004") == 0
    films = [name for name in files(judged) if name.endswith(".gif")]
    assert sorted(films) == ["report/main-seed10001.gif", "report/main-seed10004.gif"]
    for name in films:
        with Image.open(judged.folder() / name) as film:
            frames = [np.asarray(film.seek(i) or film.convert("RGB")) for i in range(film.n_frames)]
            assert film.n_frames > 10 and (judged.folder() / name).stat().st_size < LIMIT
        half = frames[0].shape[1] // 2
        for side in (slice(0, half), slice(half, None)):
            assert np.abs(frames[-1][60:-20, side].astype(int) - frames[0][60:-20, side]).max() > 50, "the arm moves"
    told = judged.ledger()[-1]["data"]["films"]
    assert [film["seed"] for film in told] == [10001, 10004]
    evidence = {
        name: {e["seed"]: e for e in json.loads((judged.folder() / f"evidence/{name}.json").read_text())["episodes"]}
        for name in ("before", "after")
    }
    text = (judged.folder() / "REPORT.md").read_text()
    for film in told:
        assert f"]({film['file']})" in text and film["caption"] in text
        before, after = film["caption"].split("After")
        for said, name in ((before, "before"), (after, "after")):
            assert ("no success" not in said) == evidence[name][film["seed"]]["success"], "on one machine: as on record"
        assert "1 updates" in after and "On record" not in film["caption"]
    assert prereg("verify", "E1") == 0 and len(judged.events()) == events + 1
    assert prereg("erratum", "E1", "--text", "a word") == 0 and prereg("report", "E1") == 0
    assert sorted(n for n in files(judged) if n.endswith(".gif")) == sorted(films) and prereg("verify", "E1") == 0
    (judged.folder() / films[0]).unlink()
    assert prereg("report", "E1") == 0 and prereg("verify", "E1") == 0, "a film that is gone is left out"
    assert films[0] not in (judged.folder() / "REPORT.md").read_text()


@pytest.mark.parametrize("name", ["../REPORT.md", "report/../x", "report/.hidden", "ledger.jsonl"])
def test_a_ledger_that_names_other_files_as_those_of_its_report_is_refused(judged, name, capsys):
    rehash(judged, len(judged.events()) - 1, lambda line: line["data"]["files"].update({name: "0"}))
    judged.git("update-ref", "-d", "refs/vla_rl/prereg/E1")
    refused(capsys, 5, "report", "E1", says="is no file of a report")
