"""`vla-rl eval` and `vla-rl probe`, stopped by their time limit and continued; in this process, on real episodes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vla_rl.cli import evaluate, probe
from vla_rl.cli.main import main
from vla_rl.cli.options import Options, parse
from vla_rl.evals.kept import Deadline, OutOfTime

SMALL = ("sim.max_ticks=60", "pool=serial", "run.device=cpu", "run.threads=1", "sampler.batch_rows=1")
DECODED = ("masked_violations", "wider_bins", "zero_fallbacks")
EVAL = ("eval", "eval.seeds=300-301", "eval.slots=1", *SMALL)
PROBE = ("probe", "probe.seeds=500-501", "probe.draws=2", "probe.temperatures=[0.7]", "probe.slots=1", *SMALL)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Let the time run out at the so-many-th look at the clock; None: never."""

    def stop(looks: int | None) -> None:
        seen = 0

        def check(deadline: Deadline) -> None:
            nonlocal seen
            seen += 1
            if seen == looks:
                raise OutOfTime

        monkeypatch.setattr(Deadline, "check", check)

    return stop


def vla_rl(capfd: Any, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what took time."""
    record["summary"].pop("predict_latency_s")
    return record


def test_a_stopped_evaluation_tells_nothing_and_goes_on_to_the_same_record(
    tmp_path: Path, capfd: Any, stop_after: Callable[[int | None], None]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, out, err = vla_rl(capfd, *EVAL, f"run.dir={whole}", "--video", "none", "--json")
    assert code == 0, err
    assert sorted(p.name for p in whole.iterdir()) == ["config.yaml", "contact_sheet.png", "eval.json"]
    record = sealed(json.loads(out))
    assert record["policy"]["name"] == "bundled:tiny_start" and len(record["policy"]["digest"]) == 64
    assert record["summary"]["nll_mean"] > 0 and record["summary"]["tokens"] == sum(
        row["tokens"] for row in record["episodes"]
    )
    counts = [[row[name] for row in record["episodes"]] for name in DECODED]
    assert list(map(sum, counts)) == [record["summary"][name] for name in DECODED]

    stop_after(4)  # the first episode has ended, the second is under way
    code, out, err = vla_rl(capfd, *EVAL, f"run.dir={parts}", "--json")
    told = json.loads(out)
    assert code == 0 and (told["complete"], told["finished"], told["episodes"]) == (False, 1, 2)
    assert f"stopped with 1 of 2 episodes; continue with vla-rl eval run.resume={parts}" in err
    assert "success" not in err and not (parts / "eval.json").exists()
    assert vla_rl(capfd, "eval", f"run.resume={parts}", "eval.temperature=1")[0] == 2
    assert vla_rl(capfd, "probe", f"run.resume={parts}")[0] == 2

    stop_after(None)
    code, out, err = vla_rl(capfd, "eval", f"run.resume={parts}", "--video", "none", "--json")
    assert code == 0, err
    assert sealed(json.loads(out)) == record
    assert (parts / "contact_sheet.png").read_bytes() != b"" and not (parts / "episodes").exists()
    code, _, err = vla_rl(capfd, "eval", f"run.resume={parts}")
    assert code == 2 and "complete" in err


@pytest.mark.slow
def test_the_expert_is_stopped_and_goes_on_too(
    tmp_path: Path, capfd: Any, stop_after: Callable[[int | None], None]
) -> None:
    given = ("eval", "policy=expert", "policy.workers=1", "eval.seeds=300-301", f"run.dir={tmp_path / 'expert'}")
    stop_after(2)
    assert vla_rl(capfd, *given)[0] == 0 and len(list((tmp_path / "expert" / "episodes").iterdir())) == 1
    stop_after(1)
    code, _, err = vla_rl(capfd, "eval", f"run.resume={tmp_path / 'expert'}")
    assert code == 0 and "no episode ended within the limit" in err
    stop_after(None)
    code, out, err = vla_rl(capfd, "eval", f"run.resume={tmp_path / 'expert'}", "--video", "none", "--json")
    record = json.loads(out)
    assert code == 0 and [row["seed"] for row in record["episodes"]] == [300, 301], err
    assert record["summary"]["successes"] == 2 and record["summary"]["nll_mean"] is None
    assert record["summary"]["protocol"] == "sim100b" and record["policy"]["name"] == "scripted expert"


@pytest.mark.parametrize("frames", ["foreign", "still"])
def test_episodes_that_depend_on_others_cannot_be_stopped(tmp_path: Path, capfd: Any, frames: str) -> None:
    given = (*EVAL, f"eval.frames={frames}", "run.max_wall_s=9", f"run.dir={tmp_path / 'blind'}")
    code, _, err = vla_rl(capfd, *given)
    assert code == 2 and f"{frames} frames" in err and not (tmp_path / "blind").exists()


@pytest.mark.parametrize(("given", "module"), [(EVAL, evaluate), (PROBE, probe)])
def test_the_limit_counts_from_the_start_of_the_command(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], module: Any
) -> None:
    def slowly(*args: Any) -> Options:
        options = parse(*args)
        return dataclasses.replace(options, started_s=options.started_s - 100.0)

    monkeypatch.setattr(module, "parse", slowly)
    code, out, err = vla_rl(capfd, *given, "run.max_wall_s=99", f"run.dir={tmp_path / 'out'}", "--json")
    assert code == 0 and json.loads(out)["finished"] == 0, err


@pytest.mark.slow
def test_a_probe_is_stopped_goes_on_and_judges_by_machine(
    tmp_path: Path, capfd: Any, stop_after: Callable[[int | None], None]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, out, err = vla_rl(capfd, *PROBE, f"run.dir={whole}", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert json.loads((whole / "probe.json").read_text()) == record
    assert set(record["decision"]) == {"temperature", "verdict", "reasons"}
    assert record["decision"]["verdict"] in ("use", "stop") and record["decision"]["reasons"]
    assert (record["greedy"]["episodes"], record["temperatures"][0]["episodes"]) == (2, 4)
    assert record["rule"] == {"min_group_std_cm": 0.05, "spread_bar_cm": 0.25, "cost_floor_cm": -1.0, "max_nats": None}
    rows = [json.loads(line) for line in (whole / "episodes.jsonl").read_text().splitlines()]
    assert [(r["temperature"], r["seed"], r["draw"]) for r in rows] == [
        (0.0, 500, 0), (0.0, 501, 0), (0.7, 500, 0), (0.7, 500, 1), (0.7, 501, 0), (0.7, 501, 1),
    ]  # fmt: skip
    assert all(row["score"] == row["progress_final_cm"] for row in rows)  # the documented quantity
    assert all(row[name] >= 0 for row in rows for name in DECODED)

    stop_after(6)  # two looks for each arm's start, so that greedy is done and one draw has ended
    code, _, err = vla_rl(capfd, *PROBE, f"run.dir={parts}")
    assert code == 0 and f"vla-rl probe run.resume={parts}" in err and "verdict" not in err
    assert len(list((parts / "episodes" / "t0").iterdir())) == 2
    stop_after(None)
    code, _, err = vla_rl(capfd, "probe", f"run.resume={parts}")
    assert code == 0 and f"verdict: {record['decision']['verdict']}" in err
    assert json.loads((parts / "probe.json").read_text()) == record
    assert sorted(p.name for p in parts.iterdir()) == ["config.yaml", "episodes.jsonl", "probe.json"]
    assert yaml.safe_load((parts / "config.yaml").read_text())["probe"]["draws"] == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("probe.temperatures=[0]", "above 0"),
        ("probe.seeds=200000", "may not be used for eval"),
        ("probe.cost_floor_cm=1", "at most 0"),
        ("sampler.mode=reference", "nothing to probe"),
    ],
)
def test_a_probe_that_makes_no_sense_is_refused(tmp_path: Path, capfd: Any, override: str, message: str) -> None:
    code, _, err = vla_rl(capfd, *PROBE, override, f"run.dir={tmp_path / 'out'}")
    assert code == 2 and message in err and not (tmp_path / "out").exists()
