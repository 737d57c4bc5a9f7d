"""Commands that were killed between two writes are gone on with; nothing that was recorded can be begun anew."""

import json
import shutil

import pytest
from bench import DRAFT, TINY, prereg

from vla_rl.cli.prereg import reading
from vla_rl.cli.prereg.attempts import publish
from vla_rl.prereg.folder import Folder

AMEND = (
    "amend",
    "E1",
    "--set",
    "summary=other words",
    "--reason",
    "r",
    "--kind",
    "clerical",
    "--data-seen",
    "outcomes",
)
LADDER = """\
ladder:
  - {id: R0, proceed_if: [money]}
  - {id: R1}
"""


def spend(bench, hours=0.5):
    (bench.root / "outputs").mkdir(exist_ok=True)
    path = bench.root / "outputs" / "spend.json"
    path.write_text(json.dumps({"values": {"hours": hours}}))
    return str(path)


def test_a_freeze_that_was_killed_before_the_ledger_knew_can_be_repeated(bench, capsys):
    bench.draft()
    (bench.folder() / "registration.yaml").write_text("half: a registration\n")
    assert prereg("freeze", "E1", *TINY) == 0
    bench.commit()
    assert prereg("verify", "E1") == 0
    assert prereg("freeze", "E1", *TINY) == 2, "and then no more"


@pytest.mark.parametrize("name", ["amendments/01.yaml", "evidence/training.json"])
def test_a_file_that_the_ledger_never_knew_of_gives_way_to_the_one_it_records(launched, name):
    left = launched.folder() / name
    left.parent.mkdir(exist_ok=True)
    left.write_text("{}\n")
    assert prereg(*(AMEND if "amend" in name else ("read", "E1", "clip"))) == 0
    assert left.read_text() != "{}\n" and prereg("verify", "E1") == 0


def test_a_file_that_the_ledger_knows_of_stays(launched):
    assert prereg(*AMEND) == 0
    (launched.folder() / "ledger.jsonl").unlink()
    assert prereg(*AMEND) == 5


def test_a_checkpoint_that_was_copied_but_not_recorded_is_copied_again(launched):
    folder = Folder(launched.experiments, "E1")
    run = launched.root / folder.load().state.attempts[0].data["run"]
    directory = launched.root / "outputs" / "prereg" / "E1" / "published" / "main" / run.name
    directory.mkdir(parents=True)
    (directory / "junk").write_text("half")
    assert publish(folder, "main", "baseline", run) == directory
    assert folder.load().state.published["main"]["directory"] == directory.relative_to(launched.root).as_posix()
    assert not (directory / "junk").exists() and (directory / "config.json").exists()


def test_a_boundary_that_a_killed_read_left_open_is_judged_by_the_next_one(bench, monkeypatch, capsys):
    bench.frozen("E1", DRAFT.replace("main:", "R0: {wall_h: 0.1}\n    R1:") + LADDER)

    def killed(target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reading, "_judge_boundaries", killed)
        prereg("read", "E1", "money", "--from", spend(bench))
    assert bench.events()[-1] == "read"
    assert prereg("launch", "E1", "--rung", "R1", "--check") == 4
    assert "vla-rl prereg read E1 money" in capsys.readouterr().err
    assert prereg("read", "E1", "money") == 0
    assert bench.events()[-1] == "rung" and "boundary of R0: PROCEED" in capsys.readouterr().out


def test_an_id_whose_ledger_was_taken_away_is_not_registered_again(active, capsys):
    active.git("reset", "-q", "--hard", "HEAD~1")
    shutil.rmtree(active.experiments, ignore_errors=True)
    active.experiments.mkdir()
    active.draft()
    assert prereg("freeze", "E1", *TINY) == 2
    assert "refs/vla_rl/prereg/E1" in capsys.readouterr().err
    active.draft(id="E2")
    assert prereg("freeze", "E2", *TINY) == 0
