"""`vla-rl export`: a complete checkpoint in the layout of a run's base, with a receipt; or its adapter alone."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.options import command_parser, print_json
from vla_rl.config.build import build
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import PolicyConfig
from vla_rl.errors import EXIT_OK, UsageError
from vla_rl.paths import BUNDLED
from vla_rl.rl.rundir import is_run, stored_config

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

EXAMPLES = (
    "vla-rl export outputs/run/20260101T120000Z-1a2b exported/boat",
    "vla-rl export outputs/run/20260101T120000Z-1a2b exported/step20 --step 20",
    "vla-rl export outputs/lora/20260101T120000Z-1a2b exported/adapter --adapter",
    "vla-rl export outputs/sft/20260101T120000Z-1a2b exported/sft --json",
    "vla-rl export bundled:tiny_start exported/base",
)

_MERGED = "rounded to the weights' number format, {:.1%} of what the adapter adds is left; --adapter writes all of it\n"


def run(argv: Sequence[str]) -> int:
    """Write the checkpoint and say what is in it; one JSON object with --json."""
    parser = command_parser(
        "export", "Write a run's policy as a complete checkpoint in the layout of its base, with a receipt.", EXAMPLES
    )
    parser.add_argument("run", help="directory of a train or sft run, or a policy checkpoint")
    parser.add_argument("directory", type=Path, help="the new checkpoint; must not exist")
    parser.add_argument("--step", type=int, help="which checkpoint of a train run (default: the newest)")
    parser.add_argument("--base", help="where a train run's base policy is now (default: where it was)")
    parser.add_argument(
        "--adapter", action="store_true", help="of a run on surface=lora: the adapter alone, in peft's layout"
    )
    parser.add_argument("--norm-tag", help="for a policy checkpoint with several normalisation tags")
    parser.add_argument("--fast-tokenizer", help="for a policy checkpoint that does not carry its action codec")
    parser.add_argument("--joint-frame", help="for a policy checkpoint whose tables do not tell: rig or v21")
    options = parser.parse_args(list(argv))
    policy, facts = _source(options)
    if options.adapter:
        return _adapter(policy, facts, options)
    summary = _export(policy, facts, options.directory)
    if options.json:
        print_json(summary)
    else:
        print(
            f"{options.directory}: {summary['tensors']} tensors, {summary['changed']} of them changed by training, "
            f"{summary['carried']} carried along from the other head\n"
            + (_MERGED.format(kept) if (kept := summary["source"].get("adapter_kept")) is not None else "")
            + f"check it with: vla-rl checkpoint validate {options.directory}"
        )
    return EXIT_OK


def export_run(run: Path, directory: Path, *, step: int | None = None) -> dict[str, Any]:
    """Write the policy of a train run as a complete checkpoint with a receipt.

    Returns:
        JSON-able: `directory`, counts of tensors, `source` (facts of the run).
    """
    policy, facts = _trained(run, argparse.Namespace(step=step, adapter=False, base=None))
    return _export(policy, facts, directory)


def _export(policy: VlaPolicy, facts: dict[str, Any], directory: Path) -> dict[str, Any]:
    from vla_rl.policy.export import export_policy
    from vla_rl.policy.lora import merge

    if policy.lora is not None:
        facts["adapter_digest"] = policy.digest()  # merged, the weights have another
        facts["adapter_kept"] = merge(policy)
    receipt = export_policy(policy, directory, source=facts)
    return {
        "directory": str(directory), "tensors": len(receipt.tensors), "changed": len(receipt.changed),
        "carried": len(receipt.carried), "source": receipt.source,
    }  # fmt: skip


def _adapter(policy: VlaPolicy, facts: dict[str, Any], options: argparse.Namespace) -> int:
    """Write the adapter alone, and say so."""
    from vla_rl.policy.lora_files import export_adapter

    source = {key: value for key, value in facts.items() if key != "base"}
    tensors = export_adapter(policy, options.directory, base=facts["base"], source=source)
    summary = {"directory": str(options.directory), "tensors": tensors, "source": facts}
    if options.json:
        print_json(summary)
    else:
        print(f"{options.directory}: {tensors} tensors of an adapter to {facts['base']['checkpoint']}")
    return EXIT_OK


def _source(options: argparse.Namespace) -> tuple[VlaPolicy, dict[str, Any]]:
    """The policy to export, and the facts about it for the receipt.

    Raises:
        UsageError: there is nothing to export, or an option that does not apply.
    """
    spec, directory = options.run, Path(options.run)
    trained = is_run(directory)
    for name in ("step", "base", "adapter") if not trained else ("norm_tag", "fast_tokenizer", "joint_frame"):
        if getattr(options, name) not in (None, False):
            kind = "a train run" if not trained else "a policy checkpoint"
            raise UsageError(f"--{name.replace('_', '-')} is for {kind}", where=spec, remedy="leave it away")
    if trained:
        return _trained(directory, options)
    sft = directory / "policy"
    if (sft / "config.json").is_file() and (directory / "config.yaml").is_file():
        digest = hashlib.sha256((directory / "config.yaml").read_bytes()).hexdigest()
        facts = {"kind": "sft-run", "name": directory.resolve().name, "config_sha256": digest}
        return _checkpoint(str(sft), options), facts
    if spec.startswith(BUNDLED):
        return _checkpoint(spec, options), {"kind": "policy", "name": spec}
    if _is_checkpoint(directory):
        return _checkpoint(spec, options), {"kind": "policy", "name": directory.resolve().name}
    raise UsageError(
        "there is nothing to export",
        where=spec,
        remedy="name the directory of a train or sft run, or a policy checkpoint",
    )


def _is_checkpoint(directory: Path) -> bool:
    """An evaluation's directory has a `config.json` too, of another kind."""
    try:
        return "model_type" in json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        return False


def _trained(run: Path, options: argparse.Namespace) -> tuple[VlaPolicy, dict[str, Any]]:
    from vla_rl.rl.trained import TrainedWeights, base_of, base_spec

    weights = TrainedWeights.of(run, options.step)
    if options.adapter and weights.checkpoint.state.get("adapter") is None:
        raise UsageError(
            "the run trained weights of the policy itself, not an adapter",
            where=str(run),
            remedy="leave --adapter away",
        )
    reader = ConfigReader(stored_config(run))
    if "checkpoint" not in reader.tree["policy"]:
        raise UsageError(
            "the run began with a policy that has no checkpoint, so there is no layout to export it in",
            where=f"{run}, policy._target_",
            remedy="train a policy that is read from a directory; random weights are for measuring a machine",
        )
    node = base_spec(reader, options.base)
    with base_of(None if options.base else run):
        policy = build(node, {"device": "cpu"}, plugins=reader.plugins, where="policy")
    weights.put_into(policy)
    return policy, {**weights.facts, "base": {"checkpoint": node["checkpoint"], "revision": node.get("revision")}}


def _checkpoint(spec: str, options: argparse.Namespace) -> VlaPolicy:
    from vla_rl.policy.policy import load_policy

    return load_policy(
        checkpoint=spec, device="cpu", serve_head="ar", task=PolicyConfig.task,
        norm_tag=options.norm_tag, fast_tokenizer=options.fast_tokenizer, joint_frame=options.joint_frame,
        allow_stale_head=True,
    )  # fmt: skip
