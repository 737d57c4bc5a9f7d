"""`vla-rl train experience.demos=DIR`: the shipped base, real demonstrations, and what does not go together."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from vla_rl.cli.main import main

# Held-out episodes are as short as they can be: nothing here is about how well anybody plays.
RUN = (
    "experiment=quickstart run.steps=2 eval.seeds=300 eval.slots=1 sampler.batch_rows=1 sim.max_ticks=30 pool=serial "
    "run.device=cpu run.threads=1 optim.microbatch_rows=4 loss.kl_rows=4"
).split()


def vla_rl(capfd, *arguments):
    capfd.readouterr()
    code = main(list(map(str, arguments)))
    return code, capfd.readouterr()


def read(path, name):
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "one"
    recorded = ("demos.seeds=100000-100001", "demos.shard_episodes=1", "demos.workers=1", "sim.max_ticks=900")
    assert main(["demos", *recorded, f"run.dir={path}"]) == 0
    return path


@pytest.fixture(scope="module")
def finished(demos, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    own = (f"experience.demos={demos}", "experience.rows=8", "geometry.temperature=0.5", f"run.dir={path}")
    assert main(["train", *RUN, *own]) == 0
    return path


def test_a_run_learns_from_demonstrations_and_its_manifest_says_which(demos, finished):
    summary = json.loads((demos / "summary.json").read_text())
    (launch,) = json.loads((finished / "manifest.json").read_text())["launches"]
    noted = launch["demonstrations"]
    assert noted["recipe_sha256"] == summary["recipe_sha256"] and noted["ticks"] == summary["taught"]
    assert noted["recipe"]["expert"]["seeds"] == "100000-100001" and len(noted["files_sha256"]) == 64
    rows = read(finished, "train.jsonl")
    assert [row["rows"] for row in rows] == [8, 8] and [row["successes"] for row in rows] == [None, None]
    assert all(row["chosen_nll"] > 0 and row["rollout_gap"] is None for row in rows)
    assert {row["phase"] for row in read(finished, "episodes.jsonl")} == {"eval"}


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_end_and_not_with_other_demonstrations(demos, finished, tmp_path, capfd):
    own, path = shutil.copytree(demos, tmp_path / "demos"), tmp_path / "run"
    keys = (f"experience.demos={own}", "experience.rows=8", "geometry.temperature=0.5", f"run.dir={path}")
    code, said = vla_rl(capfd, "train", *RUN, *keys, "run.max_wall_s=0")
    assert code == 0 and not (path / "train.jsonl").exists(), said.err
    file = next((own / "data").rglob("*.parquet"))
    held = file.read_bytes()
    pq.write_table(pq.read_table(file), file, row_group_size=50)  # the same content in other bytes
    code, said = vla_rl(capfd, "train", f"run.resume={path}")
    assert code == 5 and "files_sha256" in said.err, said.err
    file.write_bytes(held)
    code, said = vla_rl(capfd, "train", f"run.resume={path}")
    assert code == 0, said.err
    assert "8 rows of demonstrations" in said.err
    assert (path / "checkpoints/step_0002").is_dir()
    states = [json.loads((run / "checkpoints/step_0002/state.json").read_text()) for run in (path, finished)]
    first, second = (state["body"]["state"]["policy_digest"] for state in states)
    assert first == second


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (("experience.rows=8",), 2, "the run has none"),
        (("experience.recipe_sha256=00",), 2, "the run has none"),
        (("experience.demos={demos}",), 2, "how many rows"),
        (("experience.demos={demos}", "experience.rows=0"), 2, "experience.rows"),
        (("experience.demos={demos}", "experience.rows=8", "loss.weighting=constant"), 2, "loss.weighting=token"),
        (("experience.demos={demos}", "experience.rows=8", "geometry.shuffle_advantages=true"), 2, "shuffle"),
        (("experience.demos=/nowhere", "experience.rows=8"), 2, "/nowhere"),
        (("experience.demos={demos}", "experience.rows=999999"), 2, "ticks of the demonstrations"),
        (("experience.demos={demos}", "experience.rows=8", "experience.recipe_sha256=00ff"), 5, "not 00ff"),
        (
            ("experience.demos={demos}", "experience.rows=8", "sim=sim100", "policy.allow_scene_mismatch=true"),
            2,
            "another scene",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_and_leaves_nothing(demos, tmp_path, capfd, overrides, code, message):
    path = tmp_path / "run"
    own = [override.format(demos=demos) for override in overrides]
    found, said = vla_rl(capfd, "train", *RUN, *own, f"run.dir={path}")
    assert found == code and message in said.err, said.err
    assert not path.exists() and "Traceback" not in said.err


def test_a_plan_of_a_run_on_demonstrations_has_no_wave(demos, capfd):
    own = (f"experience.demos={demos}", "experience.rows=100")
    code, said = vla_rl(capfd, "plan", *RUN, *own, "--json")
    assert code == 0, said.err
    plan = json.loads(said.out)
    probe, times = plan["probe"], plan["times"]
    assert plan["groups"] is None and plan["disk_bytes"]["waves"] == 0
    assert times["rollout_s"] == pytest.approx(100 * probe["score_row_s"])
    assert times["update_s"] == pytest.approx(100 * probe["update_row_s"] + 2 * 4 * probe["score_row_s"])
    code, said = vla_rl(capfd, "plan", *RUN, f"experience.demos={demos}", "--no-probe")
    assert code == 2 and "how many rows" in said.err
