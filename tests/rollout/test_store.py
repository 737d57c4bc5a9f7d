"""The row store and the JSONL helpers: bit-exact round trips, and nothing half-written is ever seen."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from vla_rl.errors import IntegrityError
from vla_rl.rollout import store
from vla_rl.rollout.jsonl import append_jsonl, dump_json, read_jsonl, repair_jsonl
from vla_rl.rollout.records import Episode, EpisodeSpec, Row, facts


def episode_with_rows(seed=7, draw=1, lengths=(3, 1, 5)):
    rng = np.random.default_rng(seed)
    spec = EpisodeSpec(seed, draw)
    rows = tuple(
        Row(
            spec=spec,
            replan=replan,
            frames=rng.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8),
            state_deg=rng.normal(size=6) * 100,
            bins=rng.integers(0, 512, length).astype(np.int16),
            logp=(-rng.exponential(size=length)).astype(np.float32),
            legal_packed=rng.integers(0, 256, (length, 64), dtype=np.uint8),
            rng_key=(3, draw, seed, replan),
            policy_digest="abc",
        )
        for replan, length in enumerate(lengths)
    )
    metrics = {"success": True, "progress_final_cm": 1.25, "success_tick": None, "ticks": 90}
    return Episode(spec, metrics, len(rows), sum(lengths), 0.5, masked_violations=3, predict_s=0.25), rows


def same(a: Row, b: Row) -> bool:
    return all(
        np.array_equal(x, y) and x.dtype == y.dtype if isinstance(x, np.ndarray) else x == y
        for x, y in ((getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Row))
    )


def test_an_episode_comes_back_bit_for_bit(tmp_path):
    episode, rows = episode_with_rows()
    path = store.write_episode(tmp_path / "waves" / "step_0003", 3, episode, rows)
    back, back_rows = store.read_episode(path)
    assert dataclasses.asdict(back) == dataclasses.asdict(episode) and len(back_rows) == 3
    assert all(same(a, b) for a, b in zip(rows, back_rows, strict=True))


@pytest.mark.parametrize("name", ["nll", "predict_s", "metrics"])
def test_a_record_that_lacks_a_number_is_refused_and_not_filled_in(tmp_path, monkeypatch, name):
    monkeypatch.setattr(store, "asdict", lambda e: {k: v for k, v in dataclasses.asdict(e).items() if k != name})
    path = store.write_episode(tmp_path, 1, *episode_with_rows())
    with pytest.raises(IntegrityError, match=name):
        store.read_episode(path)


def test_a_file_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(store, "FORMAT", 1)
        path = store.write_episode(tmp_path, 1, *episode_with_rows())
    with pytest.raises(IntegrityError, match="format is 1, not 3"):
        store.read_episode(path)


def test_the_facts_of_an_episode_are_its_metrics_and_what_was_sampled_without_times():
    episode, _ = episode_with_rows()
    sampled = {"replans": 3, "tokens": 9, "nll": None, "masked_violations": 3, "wider_bins": 0, "zero_fallbacks": 0}
    assert facts(episode) == episode.metrics | sampled


def test_a_wave_lists_finished_episodes_only(tmp_path):
    for seed, draw in ((9, 0), (7, 1), (7, 0)):
        store.write_episode(tmp_path, 1, *episode_with_rows(seed, draw))
    (tmp_path / ".seed000011_draw00.npz.1.tmp").write_bytes(b"half of an epi")  # what a crash leaves
    assert [e.spec for e, _ in store.read_wave(tmp_path)] == [EpisodeSpec(7, 0), EpisodeSpec(7, 1), EpisodeSpec(9, 0)]
    assert store.read_wave(tmp_path / "absent") == []


def test_a_damaged_file_is_an_integrity_error_that_names_it(tmp_path):
    path = store.write_episode(tmp_path, 1, *episode_with_rows())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match="seed000007_draw01"):
        store.read_episode(path)


def test_the_estimate_of_a_rows_size_is_close_and_not_below(tmp_path):
    episode, rows = episode_with_rows(lengths=(20,) * 30)
    path = store.write_episode(tmp_path, 1, episode, rows)
    assert path.stat().st_size <= 30 * store.row_bytes(8, 2, 20, 512) + 5000


def test_non_finite_numbers_become_null_and_other_types_are_refused(tmp_path):
    assert dump_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (1, None)}}) == (
        '{"a": null, "b": [null, 1.5], "c": {"d": [1, null]}}'
    )
    with pytest.raises(TypeError):
        dump_json({"a": object()})


def test_a_cut_off_last_line_is_ignored_then_repaired_and_other_bytes_stay(tmp_path):
    path = tmp_path / "train.jsonl"
    append_jsonl(path, [{"step": 1, "x": 0.1}, {"step": 2, "x": 0.2}])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 3, "x"')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
    assert repair_jsonl(path) == 1
    assert path.read_bytes() == whole
    append_jsonl(path, [{"step": 3}])
    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 3]


def test_every_prefix_of_a_file_repairs_to_whole_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, [{"step": step, "text": "é" * step} for step in range(4)])
    data = path.read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        repair_jsonl(path)
        assert path.read_bytes() == b"".join(line + b"\n" for line in data[:length].split(b"\n")[:-1])


def test_repair_drops_what_the_predicate_refuses(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, [{"step": step} for step in (1, 2, 3)])
    assert repair_jsonl(path, lambda row: row["step"] <= 2) == 1
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert repair_jsonl(path, lambda row: row["step"] <= 2) == 0


def test_a_line_that_is_no_json_is_an_integrity_error_wherever_it_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 1-4}\n{"step": 3}\n')
    for read in (read_jsonl, repair_jsonl):
        with pytest.raises(IntegrityError, match="line 2 is no JSON"):
            read(path)
