"""The action codec: exact small cases, bounded error on anything, and no holes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from policy_support import smooth_chunks

from vla_rl.errors import ConfigError
from vla_rl.policy.alphabet import CodecError
from vla_rl.policy.fast import FastCodec, dct_matrix
from vla_rl.policy.normalise import NormStats, QuantileTable
from vla_rl.policy.refusals import TableFormat
from vla_rl.policy.tables import read_tables

CHUNKS = arrays(np.float64, (30, 6), elements=st.floats(-3.0, 3.0, width=32))
_SETTINGS = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def pair() -> FastCodec:
    """Two ticks, one joint, scale 2: levels -3..3, nothing to merge."""
    return FastCodec.fit(np.zeros((1, 2, 1)), scale=2.0, vocabulary=8)


def test_two_tick_chunk_is_encoded_as_computed_by_hand(pair: FastCodec):
    # DCT-II of (a, b) is ((a + b), (a - b)) / sqrt 2; (1, 0.5) -> (1.0607, 0.3536), times 2 -> (2.12, 0.71) -> (2, 1).
    (bins,) = pair.encode(np.array([[[1.0], [0.5]]]))
    assert pair.top_level == 3 and (bins - 3).tolist() == [2, 1]
    # Back: (2, 1) / 2 -> (1.5, 0.5) / sqrt 2.
    assert np.allclose(pair.decode([bins])[0, :, 0], [1.0, 0.5 / np.sqrt(2)])  # the first value is clamped from 1.06


def test_levels_round_half_to_even():
    # With a single tick the transform is the identity: levels are 4 x = 0.5, 1.5, 2.5, -0.5, -1.5.
    single = FastCodec.fit(np.zeros((1, 1, 1)), scale=4.0, vocabulary=9)
    streams = single.encode(np.array([0.125, 0.375, 0.625, -0.125, -0.375]).reshape(5, 1, 1))
    assert [int(stream[0]) - 4 for stream in streams] == [0, 2, 2, 0, -2]


def test_dct_matrix_is_orthonormal_and_its_first_row_is_the_mean():
    matrix = dct_matrix(30)
    assert np.allclose(matrix @ matrix.T, np.eye(30), atol=1e-14) and np.allclose(matrix[0], 1 / np.sqrt(30))


@_SETTINGS
@given(chunk=CHUNKS)
def test_any_chunk_round_trips_within_the_quantisation_bound(codec: FastCodec, chunk: np.ndarray):
    (bins,) = codec.encode(chunk[None])
    error = codec.decode([bins])[0] - np.clip(chunk, -1, 1)
    # Half a level a coefficient, 0.67 where the top level clips; the transform keeps lengths.
    bound = np.sqrt(30) * 0.67 / codec.scale
    assert codec.lengths_V[bins].sum() == 180 and bins.dtype == np.int16
    assert (np.linalg.norm(error, axis=0) <= bound).all() and np.abs(error).max() <= bound


@_SETTINGS
@given(data=st.data())
def test_every_level_is_encodable_and_the_text_of_levels_survives(codec: FastCodec, data: st.DataObject):
    levels = data.draw(arrays(np.int64, 180, elements=st.integers(-codec.top_level, codec.top_level)))
    text = "".join(chr(0x4E00 + codec.top_level + v) for v in levels)
    ids = codec.bpe.encode(text).ids
    assert "".join(codec.bpe.id_to_token(i) for i in ids) == text
    assert [len(codec.bpe.id_to_token(i)) for i in ids] == codec.lengths_V[ids].tolist()


def test_every_level_has_a_bin_of_length_one(codec: FastCodec):
    assert (codec.lengths_V == 1).sum() == 2 * codec.top_level + 1 == 165


def test_batch_encoding_and_decoding_equal_one_by_one(codec: FastCodec, stats: NormStats):
    chunks = stats.action.normalise(smooth_chunks(20, 9))
    streams = codec.encode(chunks)
    assert all(np.array_equal(s, codec.encode(c[None])[0]) for s, c in zip(streams, chunks, strict=True))
    assert np.array_equal(codec.decode(streams), np.concatenate([codec.decode([s]) for s in streams]))


def test_fitted_merges_shorten_chunks_like_the_fitted_ones(codec: FastCodec, stats: NormStats):
    lengths = [len(s) for s in codec.encode(stats.action.normalise(smooth_chunks(100, 11)))]
    assert max(lengths) < 60 and np.mean(lengths) < 25


def test_saved_codec_encodes_and_decodes_the_same(codec: FastCodec, stats: NormStats, tmp_path: Path):
    codec.save(tmp_path / "fast")
    again = FastCodec.load(tmp_path / "fast")
    chunks = stats.action.normalise(smooth_chunks(10, 3))
    streams = codec.encode(chunks)
    assert all(np.array_equal(a, b) for a, b in zip(streams, again.encode(chunks), strict=True))
    assert np.array_equal(codec.decode(streams), again.decode(streams)) and np.array_equal(
        codec.lengths_V, again.lengths_V
    )


def test_streams_that_do_not_fill_the_chunk_are_refused(codec: FastCodec):
    (good,) = codec.encode(np.zeros((1, 30, 6)))
    for bad in (good[:-1], np.append(good, good[:1]), np.array([600]), np.array([-1])):
        with pytest.raises(ConfigError):
            codec.decode([bad])
    with pytest.raises(ConfigError):
        codec.encode(np.full((1, 30, 6), np.nan))


def test_bins_past_the_learned_ones_have_no_length():
    few = FastCodec.fit(np.zeros((2, 2, 1)), scale=2.0, vocabulary=32)
    assert few.lengths_V.shape == (32,) and few.lengths_V[8:].max() == 0
    with pytest.raises(ConfigError):
        few.decode([np.array([31, 0, 0])])


def test_a_block_too_narrow_for_all_levels_is_refused():
    with pytest.raises(ConfigError):
        FastCodec.fit(np.zeros((1, 30, 6)), scale=15.0, vocabulary=164)


def test_a_foreign_or_missing_codec_directory_is_refused(codec: FastCodec, tmp_path: Path):
    with pytest.raises(ConfigError):
        FastCodec.load(tmp_path)
    codec.save(tmp_path)
    config = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps({**config, "processor_class": "Another"}))
    with pytest.raises(CodecError, match="Another"):
        FastCodec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CodecError, match="no usable"):
        FastCodec.load(tmp_path)


def test_quantile_table_maps_its_ends_to_plus_and_minus_one_also_when_descending():
    table = QuantileTable(np.array([0.0, 10.0]), np.array([10.0, -30.0]))
    assert table.normalise(np.array([[0.0, 10.0], [5.0, -10.0], [99.0, -99.0]])).tolist() == [[-1, -1], [0, 0], [1, 1]]
    assert table.denormalise(np.array([[-1.0, -1.0], [0.5, 0.5], [2.0, 2.0]])).tolist() == [
        [0, 10],
        [7.5, -20],
        [10, -30],
    ]


def test_quantiles_are_exact_over_all_frames_where_an_average_over_datasets_is_not():
    # One dataset works on the left (800 frames about -40), one on the right (200 about +40).
    rng = np.random.default_rng(0)
    left, right = rng.normal(-40, 1, (800, 6)), rng.normal(40, 1, (200, 6))
    both = np.concatenate([left, right])
    table = QuantileTable.fit(both, 0.01)
    assert np.array_equal([table.low_deg, table.high_deg], np.quantile(both, [0.01, 0.99], axis=0))
    average = 0.8 * np.quantile(left, 0.99, axis=0) + 0.2 * np.quantile(right, 0.99, axis=0)
    assert (table.high_deg > 40).all() and (average < -20).all()  # an average lies where no frame is
    assert ((both <= table.high_deg).mean(0) == 0.99).all() and ((both < table.low_deg).mean(0) == 0.01).all()
    shuffled = QuantileTable.fit(rng.permutation(both), 0.01)
    assert np.array_equal(shuffled.low_deg, table.low_deg) and np.array_equal(shuffled.high_deg, table.high_deg)


def test_values_are_clamped_after_normalising_so_a_descending_pair_is_not_sorted():
    down = QuantileTable(np.array([44.8]), np.array([-96.1]))
    assert down.normalise(np.array([[44.8], [-96.1], [60.0], [-120.0]])).tolist() == [[-1], [1], [-1], [1]]


def test_a_joint_that_never_moves_normalises_to_zero_and_comes_back():
    table = QuantileTable(np.array([4.0]), np.array([4.0]))
    assert table.normalise(np.array([[3.0], [4.0], [5.0]])).tolist() == [[0], [0], [0]]
    assert table.denormalise(np.array([[0.0], [1.0]])).tolist() == [[4], [4]]


def test_state_and_action_tables_are_separate_and_survive_the_file(stats: NormStats, tmp_path: Path):
    stats.save(tmp_path)
    again = read_tables(tmp_path, tag=None).stats
    for kept, read in ((stats.state, again.state), (stats.action, again.action)):
        assert np.array_equal(kept.low_deg, read.low_deg) and np.array_equal(kept.high_deg, read.high_deg)
    assert not np.array_equal(again.state.low_deg, again.action.low_deg)
    assert (again.tag, again.quantile, again.horizon) == ("so101_test", 0.001, 30)
    payload = json.loads((tmp_path / "norm_stats.json").read_text())
    assert payload["format"] == "molmoact2_norm_stats.v1" and payload["norm_mode"] == "q01_q99"


@pytest.mark.parametrize("damage", ["format", "short", "nan", "gone"])
def test_a_damaged_table_is_refused(stats: NormStats, tmp_path: Path, damage: str):
    stats.save(tmp_path)
    path = tmp_path / "norm_stats.json"
    payload = json.loads(path.read_text())
    table = payload["metadata_by_tag"]["so101_test"]["state_stats"]
    if damage == "format":
        payload["format"] = "v0"
    elif damage == "short":
        table["q01"].pop()
    elif damage == "nan":
        table["q99"][2] = float("nan")
    path.unlink() if damage == "gone" else path.write_text(json.dumps(payload))
    with pytest.raises(TableFormat):
        read_tables(tmp_path, tag=None)


@pytest.mark.parametrize(
    "change", [{"scale": "x"}, {"scale": 0}, {"vocab_size": None}, {"min_token": 0.5}, {"time_horizon": "30"}]
)
def test_an_artifact_whose_numbers_are_none_is_refused(codec: FastCodec, tmp_path: Path, change: dict[str, object]):
    codec.save(tmp_path)
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CodecError):
        FastCodec.load(tmp_path)
