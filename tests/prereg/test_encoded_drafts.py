"""The encoded experiments can be run here once their policy is: each is frozen anew from its draft and overrides."""

import shutil

import pytest
from bench import prereg, refused
from encoded import EXPERIMENTS, encoded

from vla_rl import paths
from vla_rl.config.compose import compose
from vla_rl.config.keys import version_gap

IDS = ("D001-discrete-pathway", "D002-token-grpo", "D003-patch-surface")
WORDS = ("--reason", "the release has come", "--kind", "operational", "--data-seen", "none")


@pytest.mark.slow  # half a minute each: everything that is pinned is read several times
@pytest.mark.parametrize("id", IDS)
def test_it_says_what_is_missing_and_can_be_launched_when_that_has_come(bench, capsys, id):
    registration = encoded(id).loaded.versions[0].registration
    bench.folder(id).mkdir()
    shutil.copy(EXPERIMENTS / id / "draft.yaml", bench.folder(id))
    overrides = registration.meta.composed_from.overrides
    refused(capsys, 2, "freeze", id, *overrides, says="is neither a directory nor a hub id pinned to a commit")
    assert prereg("freeze", id, *overrides, "--absent") == 0
    bench.commit("Freeze")
    done = [f"--done={item.id}=shown" for item in registration.activation.checklist]
    assert prereg("activate", id, *done) == 0
    missing = ("2 things stand", "MolmoAct2-SO100_101 is not there", "MolmoAct2-FAST-Tokenizer is not there")
    refused(capsys, 4, "launch", id, "--check", says=missing)
    for name in ("release", "codec"):
        shutil.copytree(paths.bundled_base("tiny_start"), bench.root / "outputs" / name)
    named = ("--set", "config.policy.checkpoint=outputs/release", "--set", "config.policy.fast_tokenizer=outputs/codec")
    assert prereg("amend", id, *named, "--repin", *WORDS) == 0
    bench.commit("Amend")
    assert prereg("launch", id, "--check") == 0


@pytest.mark.parametrize("id", IDS)
def test_it_composes_against_the_keys_of_today(id):
    registration = encoded(id).loaded.versions[0].registration
    assert version_gap("config", registration.config)[1] == []  # none of its keys is unknown by now
    now = compose("config", registration.meta.composed_from.overrides).tree
    assert {name: now["geometry"][name] for name in ("seeds", "draws", "temperature")} == {
        "seeds": 8, "draws": 8, "temperature": 1.0,
    }  # fmt: skip
