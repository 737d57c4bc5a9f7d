"""`vla-rl export` of every kind of source, and `vla-rl checkpoint validate` of what comes out.

Commands run in this process: none of them touches threads or global state, and each would import torch anew.
"""

import hashlib
import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import yaml
from policy_support import smooth_chunks
from release_support import TAG, write_release
from tiny_policy import tiny_policy

from vla_rl.cli.main import main
from vla_rl.config.schema import LoraConfig, OptimConfig
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.lora import switched_off
from vla_rl.policy.policy import load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.rl.checkpoint import save_checkpoint
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.surfaces import Lora, TextStack
from vla_rl.rl.update import build_optimizer
from vla_rl.seeds import stream


@pytest.fixture
def vla_rl(capsys):
    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:  # argparse: help, or an argument that is none
            code = left.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return call


def settings(checkpoint, **changes):
    node = {
        "_target_": "vla_rl.policy.policy.load_policy",
        "checkpoint": str(checkpoint),
        "serve_head": "ar",
        "task": "x",
    }
    return {**node, **changes}


def train_run(path, surface=None, base_digest=None, **policy):
    """A run directory as the trainer leaves it: two steps of a surface (the text stack), without the episodes."""
    node = settings(**policy)
    loaded = load_policy(device="cpu", **{k: v for k, v in node.items() if k != "_target_"})
    run = RunDir.create(path, config={"policy": node, "plugins": []}, manifest={"config_digest": "c" * 64})
    run.check_base(began := loaded.digest())
    surface = surface or TextStack()
    parameters = surface.trainable(loaded)
    optimizer = build_optimizer(parameters, OptimConfig(), surface)
    rng = stream("token", 0)
    for step in (1, 2):
        with torch.no_grad():
            for _, parameter in parameters:
                parameter += torch.from_numpy(rng.normal(0, 0.01, parameter.shape)).to(parameter.dtype)
        adapter = None if loaded.lora is None else loaded.lora.body()
        state = {
            "policy_digest": loaded.digest(), "base_digest": base_digest or began, "adapter": adapter,
        }  # fmt: skip
        save_checkpoint(run.checkpoints, step, parameters, optimizer, state)
    run.close()
    return loaded


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base") / "policy"
    tiny_policy().save(directory)
    return directory


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "trained"
    return directory, train_run(directory, checkpoint=base)


def test_a_train_run_exports_to_its_trained_policy_with_a_receipt_and_validates(vla_rl, run, tmp_path):
    directory, trained = run
    done = vla_rl("export", directory, tmp_path / "out", "--json")
    assert done.returncode == 0, done.err
    source = json.loads(done.out)["source"]
    assert (source["kind"], source["name"], source["step"]) == ("train-run", "trained", 2)
    assert source["manifest_sha256"] == hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest()
    assert source["policy_digest"] == trained.digest() and source["config_digest"] == "c" * 64
    exported = load_policy(checkpoint=str(tmp_path / "out"), device="cpu", serve_head="ar", task="x")
    assert exported.digest() == trained.digest()
    checked = vla_rl("checkpoint", "validate", tmp_path / "out", "--json")
    assert checked.returncode == 0 and json.loads(checked.out)["valid"]
    again = vla_rl("export", directory, tmp_path / "out")
    assert again.returncode == 2 and "exists" in again.err


def test_a_run_that_began_with_random_weights_is_refused(vla_rl, run, tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(run[0], directory)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    del config["policy"]["checkpoint"]
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    done = vla_rl("export", directory, tmp_path / "out")
    assert done.returncode == 2 and "has no checkpoint" in done.err and not (tmp_path / "out").exists()


def test_an_earlier_step_can_be_exported_and_a_missing_one_names_those_there_are(vla_rl, run, tmp_path):
    directory, trained = run
    assert vla_rl("export", directory, tmp_path / "out", "--step", "1").returncode == 0
    first = load_policy(checkpoint=str(tmp_path / "out"), device="cpu", serve_head="ar", task="x")
    assert first.digest() != trained.digest()
    missing = vla_rl("export", directory, tmp_path / "never", "--step", "7")
    assert missing.returncode == 2 and "steps 1, 2" in missing.err and not (tmp_path / "never").exists()


def test_a_base_that_moved_can_be_named_and_another_one_is_refused(vla_rl, run, base, tmp_path):
    directory, _ = run
    moved = tmp_path / "moved"
    base_elsewhere = tmp_path / "elsewhere"
    shutil.copytree(directory, moved)
    shutil.copytree(base, base_elsewhere)
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["policy"]["checkpoint"] = "/gone"
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    gone = vla_rl("export", moved, tmp_path / "a")
    assert gone.returncode == 5 and "/gone" in gone.err and "--base" in gone.err
    assert vla_rl("export", moved, tmp_path / "a", "--base", tmp_path / "nowhere").returncode == 2
    assert vla_rl("export", moved, tmp_path / "b", "--base", base_elsewhere).returncode == 0
    tiny_policy(seed=1).save(tmp_path / "other")
    wrong = vla_rl("export", moved, tmp_path / "c", "--base", tmp_path / "other")
    assert wrong.returncode == 5 and "not the one that the run was started from" in wrong.err
    assert not (tmp_path / "c").exists()


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """A run on the surface `lora`."""
    directory = tmp_path_factory.mktemp("runs") / "adapted"
    surface = Lora(rank=4, alpha=8.0, targets=LoraConfig().targets, run_seed=0)
    return directory, train_run(directory, surface, checkpoint=base)


def pinned(run, directory):
    """A copy of a run whose base was a commit on the hub."""
    config = yaml.safe_load((shutil.copytree(run, directory) / "config.yaml").read_text())
    config["policy"] |= {"checkpoint": "owner/name", "revision": "a" * 40}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return directory


def test_a_base_from_the_hub_can_be_named_where_it_lies_now(vla_rl, run, adapted, base, tmp_path):
    done = vla_rl("export", pinned(run[0], tmp_path / "run"), tmp_path / "out", "--base", base, "--json")
    assert done.returncode == 0 and json.loads(done.out)["source"]["base"]["revision"] is None, done.err
    source = pinned(adapted[0], tmp_path / "adapted")
    done = vla_rl("export", source, tmp_path / "adapter", "--adapter", "--base", base)
    assert done.returncode == 0, done.err
    named = json.loads((tmp_path / "adapter" / "source.json").read_text())["base"]
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert named == {"checkpoint": str(base), "revision": None}
    assert (config["base_model_name_or_path"], config["revision"]) == (str(base), None)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_told_so(vla_rl, run, adapted, tmp_path):
    for source, more in ((run[0], []), (adapted[0], ["--adapter"]), (run[0], ["--step", "1"])):
        early = shutil.copytree(source, tmp_path / f"early{len(list(tmp_path.iterdir()))}")
        shutil.rmtree(early / "checkpoints")
        for gone in ("heartbeat.json", "base_policy.sha256"):  # also killed before anything but the start was recorded
            (early / gone).unlink(missing_ok=True)
            told = vla_rl("export", early, tmp_path / "never", *more)
            assert told.returncode == 2 and "has no checkpoint yet" in told.err and f"run.resume={early}" in told.err


def test_that_a_run_has_no_adapter_is_told_before_anything_is_loaded(vla_rl, run, tmp_path):
    told = vla_rl("export", pinned(run[0], tmp_path / "run"), tmp_path / "never", "--adapter", "--base", "/gone")
    assert told.returncode == 2 and "not an adapter" in told.err and "/gone" not in told.err


def test_a_checkpoint_that_names_another_base_than_its_run_is_refused(vla_rl, base, tmp_path):
    train_run(tmp_path / "run", base_digest="0" * 64, checkpoint=base)
    told = vla_rl("export", tmp_path / "run", tmp_path / "never")
    assert told.returncode == 5 and "another base than its run" in told.err


def test_without_peft_an_export_does_not_speak_of_other_surfaces(vla_rl, adapted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    told = vla_rl("export", adapted[0], tmp_path / "never")
    assert told.returncode == 2 and "vla-rl[lora]" in told.err and "another surface" not in told.err


def log_probabilities(policy, model=None):
    """Of four streams that the policy encodes itself, on pictures of noise; under another network of it if given."""
    rng, own = np.random.default_rng(0), policy.model
    states = rng.uniform(-9, 9, (4, 6))
    observations = [Observation(rng.integers(0, 255, (2, 16, 16, 3), dtype=np.uint8), state) for state in states]
    streams = [policy.encode_chunk(np.tile(state, (policy.horizon, 1))) for state in states]
    policy.model = model or own
    with torch.no_grad():
        scores = score_rows(policy, observations, streams, 1.0)
    policy.model = own
    return scores.logp_RT


def test_a_run_with_an_adapter_exports_merged_and_loads_like_any_other_policy(vla_rl, adapted, tmp_path):
    directory, trained = adapted
    done = vla_rl("export", directory, tmp_path / "out", "--json")
    assert done.returncode == 0, done.err
    told = json.loads(done.out)
    assert told["changed"] == 2 * 4  # of each layer: fused q, k and v, out, fused gate and up, down
    exported = load_policy(checkpoint=str(tmp_path / "out"), device="cpu", serve_head="ar", task="x")
    assert told["source"]["adapter_digest"] == trained.digest()
    assert told["source"]["policy_digest"] == exported.digest() != trained.digest()
    assert vla_rl("checkpoint", "validate", tmp_path / "out").returncode == 0
    apart, merged = log_probabilities(trained), log_probabilities(exported)
    assert (apart - merged).abs().max() <= 1e-5
    with switched_off(trained.model):
        assert (log_probabilities(trained) - merged).abs().max() > 1e-3


def test_an_export_says_how_much_of_the_adapter_the_number_format_keeps(vla_rl, adapted, base, tmp_path):
    surface = Lora(rank=4, alpha=8.0, targets=LoraConfig().targets, run_seed=0)
    train_run(tmp_path / "run", surface, checkpoint=base, dtype="bfloat16")
    told = vla_rl("export", tmp_path / "run", tmp_path / "short", "--json")
    kept = json.loads(told.out)["source"]["adapter_kept"]
    assert 0.5 < kept < 0.99
    shown = vla_rl("export", tmp_path / "run", tmp_path / "out")
    assert f"{kept:.1%} of what the adapter adds is left; --adapter writes all of it" in shown.out
    whole = vla_rl("export", adapted[0], tmp_path / "float32")
    assert "100.0% of what the adapter adds is left" in whole.out


def test_an_adapter_alone_is_what_peft_reads(vla_rl, adapted, base, tmp_path):
    directory, trained = adapted
    done = vla_rl("export", directory, tmp_path / "adapter", "--adapter", "--json")
    assert done.returncode == 0 and json.loads(done.out)["tensors"] == 2 * 7 * 2, done.err
    assert {p.name for p in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "source.json",
    }  # fmt: skip
    bare = load_policy(checkpoint=str(base), device="cpu", serve_head="ar", task="x")
    wrapped = peft.PeftModel.from_pretrained(bare.model, str(tmp_path / "adapter"))
    assert torch.equal(log_probabilities(bare, wrapped.base_model.model), log_probabilities(trained))
    facts = json.loads((tmp_path / "adapter" / "source.json").read_text())
    assert facts["policy_digest"] == trained.digest() and facts["base"]["checkpoint"] == str(base)
    refused = vla_rl("checkpoint", "validate", tmp_path / "adapter")
    assert refused.returncode != 0 and "Traceback" not in refused.err


def test_only_a_run_with_an_adapter_has_one_to_export(vla_rl, run, base, tmp_path):
    for source in (run[0], base):
        refused = vla_rl("export", source, tmp_path / "never", "--adapter")
        assert refused.returncode == 2 and "adapter" in refused.err and not (tmp_path / "never").exists()


def test_a_run_on_a_release_exports_the_whole_release(vla_rl, tmp_path):
    release = write_release(
        tmp_path / "release", FastCodec.fit(smooth_chunks(200, 0) / 120, scale=15.0, vocabulary=512)
    )
    trained = train_run(tmp_path / "run", checkpoint=release, norm_tag=TAG)
    done = vla_rl("export", tmp_path / "run", tmp_path / "out", "--json")
    assert done.returncode == 0 and json.loads(done.out)["carried"] == 45, done.err
    exported = load_policy(checkpoint=str(tmp_path / "out"), device="cpu", serve_head="ar", task="x")
    assert exported.digest() == trained.digest()


def test_sft_runs_and_policies_are_sources_too_and_anything_else_is_a_usage_error(vla_rl, base, tmp_path):
    sft = tmp_path / "sft"
    sft.mkdir()
    (sft / "config.yaml").write_text("run: {}\n")
    tiny_policy().save(sft / "policy")
    for source, kind in ((sft, "sft-run"), (base, "policy"), ("bundled:tiny_start", "policy")):
        done = vla_rl("export", source, tmp_path / f"out-{len(list(tmp_path.iterdir()))}", "--json")
        assert done.returncode == 0 and json.loads(done.out)["source"]["kind"] == kind, done.err
    (sft / "config.yaml").unlink()
    for arguments in (
        (sft,),
        (tmp_path / "sft" / "..",),
        (tmp_path / "nowhere",),
        (base, "--step", "1"),
        (base, "--base", base),
    ):
        refused = vla_rl("export", arguments[0], tmp_path / "never", *arguments[1:])
        assert refused.returncode == 2 and "Traceback" not in refused.err and not (tmp_path / "never").exists()


def test_validation_prints_every_fault_and_exits_with_5(vla_rl, base, tmp_path):
    broken = shutil.copytree(base, tmp_path / "broken")
    (broken / "norm_stats.json").unlink()
    (broken / "fast_tokenizer" / "processor_config.json").unlink()
    done = vla_rl("checkpoint", "validate", broken)
    assert done.returncode == 5 and "Traceback" not in done.err
    assert "tables" in done.out and "no FAST artifact" in done.out and "2 refused" in done.out
    assert vla_rl("checkpoint", "validate", tmp_path / "nowhere").returncode == 2
    assert vla_rl("checkpoint", "inspect", base).returncode == 2
    assert vla_rl("checkpoint", "validate", "bundled:tiny_start").returncode == 0


def test_a_destination_that_cannot_be_made_is_a_usage_error(vla_rl, base, tmp_path):
    (tmp_path / "file").touch()
    done = vla_rl("export", base, tmp_path / "file" / "out")
    assert done.returncode == 2 and "cannot be written: Not a directory" in done.err


@pytest.mark.parametrize("command", ["export", "checkpoint"])
def test_the_commands_have_help_with_an_example(vla_rl, command):
    done = vla_rl(command, "--help")
    assert done.returncode == 0 and f"vla-rl {command} " in done.out.split("examples:")[1]


def test_a_joint_frame_can_be_named_for_a_checkpoint_whose_tables_do_not_tell(vla_rl, run, tmp_path):
    codec = FastCodec.fit(smooth_chunks(200, 0) / 120, scale=15.0, vocabulary=512)
    release = write_release(tmp_path / "release", codec)
    table = release / "norm_stats.json"
    body = json.loads(table.read_text())
    for tag in body["metadata_by_tag"].values():
        for stats in (tag["state_stats"], tag["action_stats"]):
            for key in ("q01", "q99", "mean", "std"):
                stats[key] = [0.1 * value for value in stats[key]]
    table.write_text(json.dumps(body))
    given = ("export", release, tmp_path / "out", "--norm-tag", TAG)
    silent = vla_rl(*given)
    assert silent.returncode != 0 and "joint_frame" in silent.err
    assert vla_rl(*given, "--joint-frame", "rig").returncode == 0
    wrong = vla_rl("export", run[0], tmp_path / "never", "--joint-frame", "rig")
    assert wrong.returncode == 2 and "--joint-frame is for a policy checkpoint" in wrong.err
