"""The README's example of a reward of one's own works as printed."""

import json
import shutil
import subprocess
import sys
import textwrap

import pytest

from vla_rl import paths


@pytest.mark.slow
def test_a_reward_in_the_working_directory_is_used(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        textwrap.dedent("""
            class Sparse:
                def __init__(self, *, bonus):
                    self.bonus = bonus

                def terms(self, metrics):
                    return {"total": self.bonus * bool(metrics["success"]) + metrics["initial_cm"]}
        """)
    )
    # A conf/ of its own stands for the user's checkout.
    shutil.copytree(paths.conf_dir(), tmp_path / "conf")
    (tmp_path / "conf" / "reward" / "sparse.yaml").write_text("_target_: my_rewards.Sparse\nbonus: 10.0\n")
    run = (
        "experiment=quickstart geometry.seeds=1 geometry.draws=2 run.steps=1 eval.seeds=300 eval.slots=2 "
        "sampler.batch_rows=2 sim.max_ticks=30 pool.workers=1 run.device=cpu reward=sparse plugins=[my_rewards] "
        "run.dir=out"
    ).split()
    code = (
        "import pathlib, sys; from vla_rl import paths; paths.conf_dir = lambda: pathlib.Path('conf').resolve(); "
        "sys.path = [p for p in sys.path if p]; from vla_rl.cli.main import main\n"
        "if __name__ == '__main__': sys.exit(main(['train', *sys.argv[1:]]))"
    )
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere" / "command.py"  # like a console script, it does not lie in the working directory
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script), *run], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["phase"] == "train"]
    assert len(trained) == 2 and all(row["reward"] == row["initial_cm"] for row in trained)
