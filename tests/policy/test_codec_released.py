"""The released artifact's codec: its own stream, its holes, its limits, and what unmasked streams do to it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from policy_support import RELEASED_HOLES, RELEASED_STREAM, released_artifact, smooth_chunks

from vla_rl.policy.alphabet import AlphabetError, CodecError
from vla_rl.policy.fast import FastCodec, HoleError, HorizonError, dct_matrix
from vla_rl.policy.normalise import NormStats

_SETTINGS = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released_artifact(tmp_path_factory.mktemp("fast"))


@pytest.fixture(scope="module")
def released(artifact: Path) -> FastCodec:
    return FastCodec.load(artifact, horizon=30, dim=6)


@pytest.fixture(scope="module")
def fitted(stats: NormStats) -> FastCodec:
    """A byte-level codec by the release's recipe, on chunks that leave rare levels unseen."""
    return FastCodec.fit(stats.action.normalise(smooth_chunks(1500, 0)), scale=10.0, vocabulary=512, byte_level=True)


def level_chunk(codec: FastCodec, level: int) -> np.ndarray:
    """A constant first joint whose mean is one level exactly, [1, 30, 6]."""
    chunk = np.zeros((1, 30, 6))
    chunk[0, :, 0] = level / codec.scale / np.sqrt(30)
    return chunk


def test_the_release_s_own_stream_decodes_and_encodes_back_to_itself(released: FastCodec):
    chunk = released.decode([np.array(RELEASED_STREAM)])
    assert released.encode(chunk)[0].tolist() == list(RELEASED_STREAM)
    # The first six symbols are the means of the joints: '?', '3', '9', '2', '5', ':' less 55 and over 10 sqrt 30.
    assert np.allclose(chunk[0].mean(0) * 10 * np.sqrt(30), [8, -4, 2, -5, -2, 3])


def test_ids_0_to_32_decode_to_one_level_and_are_never_emitted(released: FastCodec):
    assert (released.lengths_V[:33] == 1).all() and not released.reachable_V[:33].any()
    assert (released.lengths_V > 0).sum() == 174 and released.reachable_V.sum() == 174 - 33
    assert released.reachable_V[33:148].all()


def test_holes_are_the_seven_documented_levels_and_all_above_66(released: FastCodec):
    levels = np.arange(-55, 73)
    assert (levels[~released.spellable]).tolist() == [h - 55 for h in RELEASED_HOLES] + list(range(67, 73))


@pytest.mark.parametrize("code", RELEASED_HOLES)
def test_a_chunk_on_a_hole_is_counted_and_refused_and_short_when_allowed(released: FastCodec, code: int):
    chunks = np.concatenate([level_chunk(released, code - 55), level_chunk(released, 2)])
    assert released.holes(chunks).tolist() == [1, 0]
    with pytest.raises(HoleError, match="1 of 2 chunks"):
        released.encode(chunks)
    short, whole = released.encode(chunks, allow_holes=True)
    assert released.lengths_V[short].sum() == 179 and released.fault(short) == "ragged"
    assert released.fault(whole) is None


@_SETTINGS
@given(chunk=arrays(np.float64, (30, 6), elements=st.floats(-3.0, 3.0, width=32)))
@example(chunk=np.full((30, 6), -1.0))  # six levels below the lowest
@example(chunk=np.full((30, 6), 1.0))  # six above the highest
def test_what_an_encoder_emits_is_reachable_and_as_long_as_the_chunk_less_its_holes(fitted: FastCodec, chunk):
    (bins,), lost = fitted.encode(chunk[None], allow_holes=True), int(fitted.holes(chunk[None])[0])
    levels = np.rint(dct_matrix(30) @ np.clip(chunk, -1, 1) * fitted.scale)
    saturated = int((levels < fitted.alphabet.lowest).sum())  # counted as lost, yet written as the lowest
    assert fitted.reachable_V[bins].all()
    assert fitted.lengths_V[bins].sum() == 180 - (lost - saturated)
    if not lost:
        again = fitted.decode([bins])
        error = again[0] - np.clip(chunk, -1, 1)
        assert np.linalg.norm(error, axis=0).max() <= np.sqrt(30) * 0.5 / fitted.scale + 1e-12
        if np.abs(again).max() < 1:  # else decoding has clamped
            assert np.array_equal(fitted.encode(again)[0], bins)


def test_every_reachable_bin_is_what_its_own_levels_encode_to(codec: FastCodec, released: FastCodec, fitted: FastCodec):
    for one in (codec, released, fitted):
        spelled = [
            one.alphabet.symbols(one.bpe, [one.bpe.id_to_token(i)], [i])[0] for i in np.flatnonzero(one.lengths_V)
        ]
        texts = [one.alphabet.text(levels[None])[0] for levels in spelled]
        back = [one.bpe.encode(text).ids == [i] for text, i in zip(texts, np.flatnonzero(one.lengths_V), strict=True)]
        assert back == one.reachable_V[one.lengths_V > 0].tolist()
    assert codec.reachable_V[codec.lengths_V > 0].all()


def test_byte_level_recipe_makes_holes_and_the_plain_one_none(fitted: FastCodec, codec: FastCodec):
    assert not fitted.spellable[:33].all() and codec.spellable.all()
    assert fitted.record["processor_class"] == "UniversalActionProcessor" and fitted.record["time_horizon"] == 30


def test_a_byte_level_codec_survives_its_files(fitted: FastCodec, released: FastCodec, artifact: Path, tmp_path: Path):
    chunks = np.tanh(smooth_chunks(20, 3) / 60)
    for name, one in (("fitted", fitted), ("released", released)):
        one.save(tmp_path / name)
        again = FastCodec.load(tmp_path / name, horizon=30, dim=6)
        for kept, read in zip(
            one.encode(chunks, allow_holes=True), again.encode(chunks, allow_holes=True), strict=True
        ):
            assert np.array_equal(kept, read)
        assert np.array_equal(one.reachable_V, again.reachable_V) and np.array_equal(one.lengths_V, again.lengths_V)
    kept, read = (json.loads((d / "processor_config.json").read_text()) for d in (artifact, tmp_path / "released"))
    assert kept == read


def test_a_horizon_that_outgrows_the_artifact_is_refused_by_name(artifact: Path):
    with pytest.raises(HorizonError, match=r"\+-71.*-55 to 66"):
        FastCodec.load(artifact, horizon=50, dim=6)
    with pytest.raises(HorizonError, match="at most 30 ticks"):
        FastCodec.load(artifact, horizon=31, dim=6)
    with pytest.raises(CodecError, match="time_horizon"):
        FastCodec.load(artifact, dim=6)


def test_a_codec_of_another_horizon_is_refused_by_name(codec: FastCodec, tmp_path: Path):
    codec.save(tmp_path)
    with pytest.raises(HorizonError, match="30, not 15"):
        FastCodec.load(tmp_path, horizon=15)
    assert FastCodec.load(tmp_path, horizon=30, dim=6).horizon == 30


def damaged(artifact: Path, directory: Path, kind: str) -> Path:
    directory.mkdir()
    tokenizer = json.loads((artifact / "tokenizer.json").read_text())
    config = json.loads((artifact / "processor_config.json").read_text())
    if kind == "split symbol":
        tokenizer["model"]["vocab"]["Ã"] = 600  # the first byte of code points 192 to 255
    elif kind == "narrow block":
        config["vocab_size"] = 306
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "processor_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("kind", ["split symbol", "narrow block"])
def test_an_alphabet_that_cannot_work_is_refused_by_name(artifact: Path, tmp_path: Path, kind: str):
    with pytest.raises(AlphabetError):
        FastCodec.load(damaged(artifact, tmp_path / "copy", kind), horizon=30, dim=6)


def test_levels_too_many_for_single_bytes_are_refused_by_name():
    with pytest.raises(AlphabetError, match="single bytes"):
        wide = np.concatenate([np.ones((1, 30, 6)), -np.ones((1, 30, 6))])
        FastCodec.fit(wide, scale=15.0, vocabulary=512, byte_level=True)


def test_unmasked_streams_fall_into_the_documented_classes(fitted: FastCodec):
    rng = np.random.default_rng(4)
    learned = np.flatnonzero(fitted.lengths_V)
    random = [fitted.fault(rng.choice(learned, 25)) for _ in range(500)]
    assert set(random) <= {"ragged", "short", "long"} and None not in random
    assert Counter(random)["ragged"] > 300 and Counter(random)["short"] + Counter(random)["long"] > 30
    good = [s for s in fitted.encode(np.tanh(smooth_chunks(600, 8) / 60), allow_holes=True) if fitted.fault(s) is None]
    broken = []
    for stream in good[:500]:
        swapped = stream.copy()
        swapped[rng.integers(len(stream))] = rng.choice(learned)
        broken.append(fitted.fault(swapped))
    assert len(broken) == 500 and 300 < sum(fault is not None for fault in broken) < 500


def test_a_stream_without_learned_bins_is_empty(released: FastCodec):
    assert released.fault(np.zeros(0)) == "empty" == released.fault(np.array([2047, 1005]))


def test_unlearned_bins_count_as_nothing_in_an_unmasked_stream(released: FastCodec):
    padded = np.insert(np.array(RELEASED_STREAM), 5, 1500)
    assert released.fault(padded) is None
    with pytest.raises(CodecError):
        released.decode([padded])
