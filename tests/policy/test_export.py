"""Exports: the whole layout again, bit for bit where nothing changed; whole or not there; with a receipt that holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_support import TASK
from release_support import TAG
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_released import edit_json, edit_weights, load

from vla_rl.errors import ConfigError, MachineError, UsageError
from vla_rl.policy import export, refusals
from vla_rl.policy.export import export_policy
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.heads import HeadState
from vla_rl.policy.metadata import FILE_NAME as METADATA
from vla_rl.policy.metadata import VERSION, Metadata, read_metadata, write_metadata
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.receipt import read_receipt
from vla_rl.policy.sources import Sources
from vla_rl.policy.validate import OK, REFUSED, SKIPPED, validate

QKV = "model.transformer.blocks.0.self_attn.att_proj.weight"
FACTS = {"kind": "test", "name": "facts"}


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return {n: t for path in sorted(directory.glob("*.safetensors")) for n, t in load_file(path).items()}


@torch.no_grad()
def train(policy: VlaPolicy) -> None:
    """What an update does: part of a fused projection, rows of both parts of the embedding, a row of the head."""
    text = policy.model.model.language_model
    text.layers[0].self_attn.k_proj.weight.mul_(1.25)
    base = policy.model.config.text_config.vocab_size
    text.embed_tokens.weight[[3, base - 1, base + 2]] += 0.5
    policy.model.lm_head.weight[policy.prompt.ids.action_block] -= 0.5


CHANGED = ["lm_head.weight", QKV, "model.transformer.wte.embedding", "model.transformer.wte.new_embedding"]


def test_an_untouched_policy_exports_every_tensor_and_file_bit_for_bit(release: Path, tmp_path: Path):
    receipt = export_policy(load(release), tmp_path / "out", source=FACTS)
    before, after = weights_of(release), weights_of(tmp_path / "out")
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    assert receipt.changed == [] and len(receipt.carried) == 45
    for path in release.rglob("*"):
        if path.suffix in (".json", ".jinja", ".py") and path.name != "model.safetensors.index.json":
            assert (tmp_path / "out" / path.relative_to(release)).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trained_policy_comes_back_bit_for_bit_and_only_what_was_trained_differs(
    release: Path, tmp_path: Path, dtype: str
):
    policy = load(release, dtype=dtype)
    train(policy)
    receipt = export_policy(policy, tmp_path / "out", source=FACTS)
    again = load(tmp_path / "out", dtype=dtype)
    assert again.digest() == policy.digest() == receipt.source["policy_digest"]
    before, after = weights_of(release), weights_of(tmp_path / "out")
    assert sorted(n for n in before if not torch.equal(before[n], after[n])) == CHANGED == receipt.changed
    assert {t.dtype for t in after.values()} == {torch.float32}
    rows = {n: (before[n] != after[n]).any(1).nonzero().flatten().tolist() for n in CHANGED if "wte" in n}
    base = policy.model.config.text_config.vocab_size
    assert rows == {CHANGED[2]: [3, base - 1], CHANGED[3]: [2]}
    # Split where the base vocabulary ends, not into halves; the fused projection keeps its other parts.
    assert after[CHANGED[2]].shape[0] == base and after[CHANGED[3]].shape[0] == 128
    assert torch.equal(
        after[QKV][:64].to(again.model.dtype), again.model.model.language_model.layers[0].self_attn.q_proj.weight
    )


def test_shards_and_their_index_stay_as_they_were(release: Path, tmp_path: Path):
    export_policy(load(release), tmp_path / "out", source=FACTS)
    name = "model.safetensors.index.json"
    assert json.loads((release / name).read_text()) == json.loads((tmp_path / "out" / name).read_text())
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "pt") as new, safe_open(release / path.name, "pt") as old:
            assert set(new.keys()) == set(old.keys()) and new.metadata() == old.metadata()


def test_a_base_in_half_precision_keeps_what_training_in_full_precision_added(release_copy: Path, tmp_path: Path):
    edit_weights(release_copy, lambda w: w.update({n: t.bfloat16() for n, t in w.items() if "rotary" not in n}))
    policy = load(release_copy)
    with torch.no_grad():
        policy.model.lm_head.weight.add_(1e-6)
    export_policy(policy, tmp_path / "out", source=FACTS)
    stored = weights_of(tmp_path / "out")
    assert stored["lm_head.weight"].dtype == torch.float32 and stored[QKV].dtype == torch.bfloat16
    assert load(tmp_path / "out").digest() == policy.digest()


def test_an_export_of_an_export_and_saving_a_loaded_release_keep_the_expert(release: Path, tmp_path: Path):
    policy = load(release)
    train(policy)
    policy.save(tmp_path / "saved")
    export_policy(load(tmp_path / "saved"), tmp_path / "out", source=FACTS)
    first, second = weights_of(tmp_path / "saved"), weights_of(tmp_path / "out")
    assert first.keys() == second.keys() == weights_of(release).keys()
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_a_twin_exports_to_the_bytes_of_its_own_save(
    codec: FastCodec, stats: NormStats, policy: VlaPolicy, tmp_path: Path
):
    policy.save(tmp_path / "twin")
    export_policy(load(tmp_path / "twin", norm_tag=None), tmp_path / "out", source=FACTS)
    for path in (tmp_path / "twin").rglob("*"):
        if path.is_file():
            assert (tmp_path / "out" / path.relative_to(tmp_path / "twin")).read_bytes() == path.read_bytes(), path.name
    with pytest.raises(ConfigError, match="fresh policy"):
        export_policy(policy, tmp_path / "never", source=FACTS)


def test_model_cards_pickles_and_old_receipts_stay_behind(release_copy: Path, tmp_path: Path):
    for name in ("README.md", "training_args.bin", "receipt.json", "evaluation.json"):
        (release_copy / name).write_text("{}")
    (release_copy / "training_scene.json").write_text('{"protocol": "sim100b"}')
    export_policy(load(release_copy), tmp_path / "out", source=FACTS)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names.isdisjoint({"README.md", "training_args.bin", "evaluation.json"}) and "training_scene.json" in names
    receipt = read_receipt(tmp_path / "out")
    assert receipt and receipt.source["kind"] == "test"


def test_an_existing_destination_is_never_touched(release: Path, tmp_path: Path):
    policy = load(release)
    for make in (Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")):
        destination = tmp_path / f"there{len(list(tmp_path.iterdir()))}"
        make(destination)
        with pytest.raises(UsageError, match="exists"):
            export_policy(policy, destination, source=FACTS)
        assert destination.is_symlink() or not destination.is_dir() or not any(destination.iterdir())


def test_an_export_that_is_broken_off_leaves_nothing(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "write_receipt", fail)
    with pytest.raises(KeyboardInterrupt):
        export_policy(load(release), tmp_path / "out", source=FACTS)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_noticed_before_anything_is_written(release: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(export.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(MachineError, match="free"):
        export_policy(load(release), tmp_path / "a" / "out", source=FACTS)
    assert list(tmp_path.iterdir()) == []


def test_room_is_counted_in_the_format_that_trained_weights_are_stored_in(
    release_copy: Path, tmp_path: Path, monkeypatch
):
    edit_weights(release_copy, lambda w: w.update({n: t.bfloat16() for n, t in w.items() if "rotary" not in n}))
    policy, plain = load(release_copy), load(release_copy, dtype="bfloat16")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    export_policy(policy, tmp_path / "first", source=FACTS)
    written, stored = (
        sum(p.stat().st_size for p in directory.glob("*.safetensors"))
        for directory in (tmp_path / "first", release_copy)
    )
    of_origin = sum(p.stat().st_size for p in release_copy.rglob("*") if p.is_file())
    free = of_origin + int(0.99 * (written - stored))
    assert written > 1.8 * stored
    monkeypatch.setattr(export.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    with pytest.raises(MachineError, match="free"):
        export_policy(policy, tmp_path / "second", source=FACTS)
    assert not (tmp_path / "second").exists()
    export_policy(plain, tmp_path / "third", source=FACTS)  # its weights grow no wider


def test_the_network_is_walked_once_however_many_shards_there_are(release: Path, tmp_path: Path, monkeypatch):
    policy, walks = load(release), []
    train(policy)
    real = policy.adapter.stored_tensors
    monkeypatch.setattr(policy.adapter, "stored_tensors", lambda model: (walks.append(model), real(model))[1])
    assert len(list(release.glob("*.safetensors"))) == 3
    assert export_policy(policy, tmp_path / "out", source=FACTS).changed == CHANGED and len(walks) == 1


# ----------------------------------------------------------------------------------------------- metadata versions
def test_version_0_is_a_directory_without_metadata_and_every_version_has_a_reader(release: Path, tmp_path: Path):
    assert read_metadata(release) == Metadata()
    heads = {"ar": HeadState("joint", insulated=True), "flow": HeadState(None, stale=True)}
    written = Metadata(VERSION, "tag", "rig", {"image_token": "<image>"}, heads)
    write_metadata(tmp_path, written)
    body = json.loads((tmp_path / METADATA).read_text())
    assert read_metadata(tmp_path) == written and body["schema_version"] == 2
    (tmp_path / METADATA).write_text(json.dumps({**body, "schema_version": 1}))
    assert read_metadata(tmp_path) == replace(written, version=1, heads={})


def test_what_is_saved_now_is_of_version_2_and_a_policy_of_version_0_is_the_same(policy: VlaPolicy, tmp_path: Path):
    policy.save(tmp_path)
    assert read_metadata(tmp_path) == Metadata(2, "so101_test", "rig", None)
    (tmp_path / METADATA).unlink()
    older = load_policy(checkpoint=str(tmp_path), device="cpu", serve_head="ar", task=TASK)
    assert older.origin and older.origin.metadata.version == 0 and older.joint_frame == "rig"
    assert older.digest() == policy.digest()


@pytest.mark.parametrize(
    "body",
    [
        '{"schema_version": 99}',
        "{",
        "[]",
        '{"schema_version": 1}',
        '{"schema_version": []}',
        '{"schema_version": 1, "norm_tag": null, "joint_frame": "v30", "adapter": null}',
        '{"schema_version": 1, "norm_tag": ["x"], "joint_frame": null, "adapter": null}',
        '{"schema_version": 2, "norm_tag": null, "joint_frame": null, "adapter": null}',
        *(
            '{"schema_version": 2, "norm_tag": null, "joint_frame": null, "adapter": null, "heads": ' + heads + "}"
            for heads in ("[]", '{"ar": {"stal": true}}', '{"ar": {"stale": 1}}', '{"text": {}}', '{"ar": []}')
        ),
    ],
)
def test_metadata_from_the_future_or_damaged_is_refused(release_copy: Path, body: str):
    (release_copy / METADATA).write_text(body)
    with pytest.raises(refusals.SchemaVersion):
        load(release_copy)


def test_the_tag_of_an_export_needs_not_be_named_again(release: Path, tmp_path: Path):
    export_policy(load(release), tmp_path / "out", source=FACTS)
    assert load(tmp_path / "out", norm_tag=None).stats.tag == TAG


# ----------------------------------------------------------------------------------------------------- validation
@pytest.fixture(scope="module")
def exported(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exports") / "out"
    policy = load(release)
    train(policy)
    export_policy(policy, directory, source=FACTS)
    return directory


def test_an_export_a_release_and_the_shipped_base_are_valid(exported: Path, release: Path):
    from vla_rl import paths

    for directory in (exported, release, paths.bundled_base("tiny_start")):
        report = validate(directory, Sources())
        assert report.valid, [finding for finding in report.findings if finding.state != OK]
    assert "as exported" in next(f.detail for f in validate(exported, Sources()).findings if f.check == "provenance")


def turn_table(directory: Path) -> None:
    def turn(body: dict[str, Any]) -> None:
        body["metadata_by_tag"][TAG]["state_stats"]["q01"][0] = 1.0

    edit_json(directory / "norm_stats.json", turn)


def edit_receipt(directory: Path) -> None:
    edit_json(directory / "receipt.json", lambda b: b["body"]["source"].update(kind="other"))


def flip(directory: Path) -> None:
    """Change one number of the expert: nothing but a digest can tell."""
    path = next(p for p in directory.glob("*.safetensors") if any("action_expert" in n for n in load_file(p)))
    weights = load_file(path)
    name = next(n for n in weights if "action_expert" in n)
    weights[name].view(-1)[0] += 1e-3
    save_file(weights, path, metadata={"format": "pt"})


def poison_expert(directory: Path) -> None:
    edit_weights(directory, lambda w: w["model.action_expert.action_embed.weight"].fill_(float("nan")))


EDITS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "one number": (flip, {"receipt"}),
    "a table": (turn_table, {"receipt"}),
    "a file more": (lambda d: (d / "extra.json").write_text("{}"), {"receipt"}),
    "weights of nobody": (lambda d: save_file({"x": torch.zeros(1)}, d / "other.safetensors"), {"receipt"}),
    "a scene that is no object": (lambda d: (d / "training_scene.json").write_text("[]"), {"damaged-file"}),
    "a file less": (lambda d: (d / "chat_template.jinja").unlink(), {"receipt"}),
    "the receipt": (edit_receipt, {"receipt"}),
    "an unreadable receipt": (lambda d: (d / "receipt.json").write_text("{"), {"receipt"}),
    "nan in the expert": (poison_expert, {"damaged-file", "receipt"}),
    "a pickle": (lambda d: (d / "optimizer.pt").write_bytes(b"x"), {"damaged-file", "receipt"}),
    "two faults": (
        lambda d: (
            edit_json(d / "config.json", lambda c: c.update(action_mode="continuous", state_format="continuous")),
            (d / "receipt.json").unlink(),
        ),
        {"one-head", "unsupported-feature"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_validation_names_every_fault(exported: Path, tmp_path: Path, edit: str):
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    damage, names = EDITS[edit]
    damage(copy)
    report = validate(copy, Sources())
    assert not report.valid and {f.refusal for f in report.findings if f.state == REFUSED} == names


def test_validation_of_anything_else_reports_and_does_not_crash(tmp_path: Path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 5)
    (tmp_path / "tokenizer.json").write_text("{}")
    report = validate(tmp_path, Sources())
    assert not report.valid and sum(f.state == REFUSED for f in report.findings) >= 4


def lose_sizes(directory: Path) -> None:
    edit_json(directory / "config.json", lambda c: c["vit_config"].update(image_default_input_size=[{}]))


def cut_short(directory: Path) -> None:
    path = directory / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "name"),
    [(lose_sizes, "unsupported-feature"), (cut_short, "damaged-file")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_builds_on_a_refused_network_is_skipped_and_the_rest_is_still_checked(
    release_copy: Path, damage: Callable[[Path], None], name: str
):
    damage(release_copy)
    states = {f.check: f for f in validate(release_copy, Sources(norm_tag=TAG)).findings}
    assert {f.refusal for f in states.values() if f.state == REFUSED} == {name}
    assert states[f"codec for {TAG}"].state == SKIPPED and states[f"joint frame of {TAG}"].state == OK


def test_a_joint_frame_that_nothing_can_tell_without_a_configuration_is_skipped(release_copy: Path):
    (release_copy / "config.json").write_text("{")
    states = {f.check: f for f in validate(release_copy, Sources(norm_tag=TAG)).findings}
    assert [f.check for f in states.values() if f.state == REFUSED] == ["configuration"]
    assert states[f"joint frame of {TAG}"].state == SKIPPED and states[f"tables of {TAG}"].state == OK


def test_damage_that_no_check_foresees_is_a_finding_like_others(release: Path, monkeypatch: pytest.MonkeyPatch):
    def surprised(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("vla_rl.policy.released.check_rotary", surprised)
    report = validate(release, Sources())
    assert [(f.check, f.refusal) for f in report.findings if f.state != OK] == [("rotary", "damaged-file")]
