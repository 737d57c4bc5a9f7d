"""The page of a registration and of its runs: only what was opened is told, and nobody's text becomes a part of it."""

import json
import shutil

import pytest
from bench import DRAFT, prereg, refused
from runs import Seen, evaluation, lines

from vla_rl.cli.main import main
from vla_rl.prereg.folder import Folder

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def report(what, *more):
    assert main(["report", str(what), *more]) == 0


def run_of(bench):
    (run,) = (bench.root / "outputs/prereg/E1").glob("main-*/attempt_*")
    return run


def page(path):
    return (path / "report.html").read_bytes()


def rewritten(run, change):
    """The files of a run with other held-out outcomes."""
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    (run / "episodes.jsonl").write_text(lines(change(row) if row["phase"] == "eval" else row for row in rows))
    held = {at: [row for row in map(change, rows) if row["phase"] == "eval" and row["step"] == at] for at in (0, 1)}
    (run / "eval.jsonl").write_text(lines(evaluation(at, told) for at, told in held.items()))


# ----------------------------------------------------------------------------------------------------- a registered run
def test_the_page_of_a_registered_run_does_not_depend_on_its_sealed_outcomes(launched):
    """Whatever came of the evaluations, the page is the same to the last byte: nothing of them can be read from it."""
    run = run_of(launched)
    report(run)
    before = page(run)
    rewritten(run, lambda row: {**row, "success": True, "success_strict": True, "reward": 99.0, "lifted": True,
                                "reward_progress": 77.0, "progress_final_cm": 66.0})  # fmt: skip
    report(run)
    assert page(run) == before
    text = Seen(before).text
    assert "The held-out evaluations are sealed" in text and "vla-rl prereg read E1 READ" in text
    assert "Success of training waves" in text, "what a launch shows while it runs is told"


def test_a_read_opens_the_page_of_its_run(launched, capsys):
    run = run_of(launched)
    capsys.readouterr()
    report(run, "--json")
    assert json.loads(capsys.readouterr().out)["sealed"] == ["evaluation after 0 updates", "evaluation after 1 updates"]
    assert prereg("read", "E1", "progress") == 0
    capsys.readouterr()
    report(run, "--json")
    assert json.loads(capsys.readouterr().out)["sealed"] == []
    text = Seen(page(run)).text
    assert "Success on 6 held-out scenes" in text and "registration E1" in text


@pytest.mark.parametrize("lost", ["experiments", "manifest", "ledger"])
def test_a_run_whose_registration_cannot_be_asked_stays_sealed(launched, lost):
    run = run_of(launched)
    if lost == "experiments":
        shutil.rmtree(launched.folder())
    elif lost == "manifest":
        (run / "manifest.json").unlink()
    else:
        told = json.loads((run / "manifest.json").read_text())
        told["launches"][-1]["registered"]["ledger"]["hash"] = "0" * 64
        (run / "manifest.json").write_text(json.dumps(told))
    report(run)
    text = Seen(page(run)).text
    assert "The held-out evaluations are sealed" in text and "Success on" not in text


def test_films_of_a_registered_run_are_left_to_the_command_that_knows_what_was_opened(launched, capsys):
    assert main(["report", str(run_of(launched)), "--videos", "10000"]) == 2
    assert "vla-rl prereg report E1 --videos 10000" in capsys.readouterr().err
    assert main(["report", "E1", "--videos", "10000"]) == 2
    assert "vla-rl prereg report E1 --videos 10000" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- registrations
def test_the_page_of_a_registration_shows_what_was_opened_and_names_what_was_not(launched, capsys):
    report("E1", "--json")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told["sealed"]) == {"before", "after", "training", "spend"}
    place = launched.root / "outputs/prereg/E1"
    text = Seen(page(place)).text
    assert (
        "No verdict yet" in text and "not read: sealed" in text and "Each trained policy against the base" not in text
    )
    assert prereg("read", "E1", "progress") == 0
    report("E1")
    text = Seen(page(place)).text
    assert (
        "Each trained policy against the base" in text
        and "Not opened, so that nothing here tells of it: training" in text
    )


def test_a_page_leaves_the_registration_as_it_was(judged):
    files = {p: p.read_bytes() for p in judged.folder().rglob("*") if p.is_file()}
    report("E1")
    assert {p: p.read_bytes() for p in judged.folder().rglob("*") if p.is_file()} == files
    assert prereg("verify", "E1") == 0
    first = page(judged.root / "outputs/prereg/E1")
    report(judged.folder())
    assert page(judged.root / "outputs/prereg/E1") == first, "by its directory as by its id, and the same bytes"


def test_the_page_of_a_judged_registration_tells_verdict_reads_ledger_and_cost(judged):
    report("E1", "--md")
    place = judged.root / "outputs/prereg/E1"
    seen = Seen(page(place))
    loaded = Folder(judged.experiments, "E1").load()
    assert loaded.state.verdict["verdict"] in seen.text and "Does the boat end nearer?" in seen.text
    assert all(entry.hash[:12] in seen.text for entry in loaded.entries)
    assert "of 1 spent" in seen.text and "the loop runs" in seen.text
    assert "## Reads" in (place / "report.md").read_text()


def test_a_registration_that_is_not_what_the_ledger_says_has_no_page(judged, capsys):
    path = judged.folder() / "evidence/before.json"
    path.write_bytes(path.read_bytes().replace(b"true", b"false", 1))
    assert main(["report", "E1"]) == 5
    assert "before.json" in capsys.readouterr().err


def test_a_draft_has_nothing_to_report(bench, capsys):
    bench.draft()
    assert main(["report", "E1"]) == 2
    assert "vla-rl prereg freeze E1" in capsys.readouterr().err


def test_no_text_of_a_registration_becomes_a_part_of_its_page(bench, capsys):
    text = DRAFT.replace("A tiny registration", HOSTILE).replace("author: Ada", f"author: {HOSTILE}")
    text = text.replace("  Does one step change anything?", f"  {HOSTILE}").replace(
        "Does the boat end nearer?", HOSTILE
    )
    text = text.replace("population: boat to disk", f"population: {HOSTILE}").replace(
        "data_seen: nothing", f"data_seen: {HOSTILE}"
    )
    text = text.replace("One step moves the boat farther.", HOSTILE)
    bench.frozen("E1", text)
    assert prereg("amend", "E1", "--set", "config.optim.lr=1e-5", "--reason", HOSTILE, "--kind", "scientific",
                  "--data-seen", "none") == 0  # fmt: skip
    bench.commit("Amend E1")
    assert prereg("erratum", "E1", "--text", HOSTILE) == 0
    report("E1", "--md")
    place = bench.root / "outputs/prereg/E1"
    seen = Seen(page(place))
    assert seen.text.count("<script>alert(1)</script>") > 8, "it is told, as text"
    assert not seen.of("script") and not seen.of("img")
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert "<" not in (place / "report.md").read_text()
    refused(capsys, 0, "verify", "E1")
