"""Training rows: every label decodes to the demonstrated chunk, every gathered picture is the row's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vla_rl.errors import UsageError
from vla_rl.policy.policy import VlaPolicy
from vla_rl.sft.dataset import Demonstrations, MappedFrames, ResidentFrames, open_demonstrations, training_rows

CPU = torch.device("cpu")


def test_labels_decode_to_the_demonstrated_chunks(demos: Demonstrations, twin: VlaPolicy) -> None:
    rows = training_rows(demos, twin.stats, twin.codec, CPU)
    errors_deg = []
    for row in rows.usable[::5]:
        bins = rows.bins_NT[row, : rows.length_N[row]].numpy()
        assert np.array_equal(bins, twin.encode_chunk(demos.targets_deg[row]))
        errors_deg.append(np.abs(twin.decode_chunk(bins) - demos.targets_deg[row]).mean())
    assert 0 < np.mean(errors_deg) < 1.0
    assert np.array_equal(rows.state_bins_NJ.numpy(), twin.state_bins(demos.state_deg))


def test_streams_longer_than_the_padding_are_never_sampled(demos: Demonstrations, twin: VlaPolicy) -> None:
    rows = training_rows(demos, twin.stats, twin.codec, CPU)
    assert (rows.length_N[rows.usable] <= rows.bins_NT.shape[1]).all()
    assert len(rows.usable) >= 0.99 * len(demos)


def test_both_frame_sources_gather_the_rows_across_shard_borders(demos: Demonstrations) -> None:
    everything = np.concatenate(demos.frames)
    order = np.random.default_rng(0).permutation(len(everything))[:40]
    for source in (MappedFrames(demos.frames), ResidentFrames(demos.frames, CPU)):
        assert np.array_equal(source.gather(order).numpy(), everything[order])


def test_a_directory_without_demonstrations_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="demos.json is missing"):
        open_demonstrations(tmp_path)
