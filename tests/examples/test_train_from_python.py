"""The example that trains from Python runs as it stands, on shorter episodes."""

import importlib.util
import json
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_from_python.py"


def test_the_example_trains_without_the_configuration_system(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("train_from_python", EXAMPLE)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(str(tmp_path / "run"), max_ticks=30)
    assert "4 episodes" in capsys.readouterr().out
    rows = {name: (tmp_path / "run" / f"{name}.jsonl").read_text().splitlines() for name in ("train", "eval")}
    assert [json.loads(row)["step"] for row in rows["eval"]] == [0, 1]
    assert json.loads(rows["train"][0])["episodes"] == 4
    assert "hydra" not in EXAMPLE.read_text()
