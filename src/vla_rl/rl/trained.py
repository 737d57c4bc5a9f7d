"""The policy that a training run has arrived at: its base with the surface's weights of a checkpoint.

In: a run directory and a step. Out: the policy with those weights in place, verified against the digests of the run's
base, of the checkpoint's files and its base, and of the resulting weights; and facts for a receipt. A checkpoint
of an adapter holds the adapter alone; the policy then carries it. Nothing is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vla_rl.config.reader import ConfigReader
from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.policy.lora import LoraSettings, attach
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rl.rundir import CONFIG, MANIFEST, recorded_base


@dataclass(frozen=True)
class TrainedWeights:
    """A checkpoint of a run and where it comes from.

    Attributes:
        checkpoint: verified.
        base_digest: digest of the policy that the run was started from.
        facts: for a receipt; digests of the manifest and the configuration among them.
    """

    checkpoint: ckpt.Checkpoint
    base_digest: str
    facts: dict[str, Any]

    @classmethod
    def of(cls, run: Path, step: int | None) -> TrainedWeights:
        """Read the checkpoint of `step`, or the newest.

        Raises:
            UsageError: the run has no such checkpoint; names those it has.
            IntegrityError: it is damaged, or the run does not say what it was started from.
        """
        found = {path: int(path.name.removeprefix("step_")) for path in ckpt.checkpoints(run / "checkpoints")}
        chosen = [path for path, number in found.items() if step in (None, number)]
        if not found:
            raise UsageError(
                "the run has no checkpoint yet",
                where=str(run),
                remedy=f"let it go on: vla-rl train run.resume={run}; the first follows after checkpoint.every updates",
            )
        if not chosen:
            raise UsageError(
                f"the run has no checkpoint of step {step}",
                where=str(run / "checkpoints"),
                remedy=f"it has those of the steps {', '.join(map(str, found.values()))}",
            )
        checkpoint = ckpt.load_checkpoint(chosen[-1])
        try:
            base = recorded_base(run)
            launches = json.loads((run / MANIFEST).read_bytes())["launches"]
            digests = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in (MANIFEST, CONFIG)}
        except (OSError, ValueError, KeyError) as error:
            raise IntegrityError(f"the run's own records cannot be read: {error!r}", where=str(run)) from error
        facts = {
            "kind": "train-run", "name": run.resolve().name, "step": checkpoint.step, "base_digest": base,
            "manifest_sha256": digests[MANIFEST], "config_sha256": digests[CONFIG],
            "config_digest": launches[0].get("config_digest"), "git": launches[0].get("git"),
        }  # fmt: skip
        return cls(checkpoint, base, facts)

    def put_into(self, policy: Any) -> None:
        """Put the surface's weights into the run's base policy; see `put_weights`."""
        put_weights(policy, self.base_digest, self.checkpoint)


@torch.no_grad()
def put_weights(policy: Any, base_digest: str, checkpoint: ckpt.Checkpoint | None) -> None:
    """Put the surface's weights of a checkpoint into the run's base policy; None leaves the base.

    Raises:
        IntegrityError: the policy is not the run's base, lacks a weight of the surface, or does not end up with the
            digest that the checkpoint recorded.
    """
    where = None if checkpoint is None else str(checkpoint.path)
    if policy.digest() != base_digest:
        raise IntegrityError(
            "the base policy is not the one that the run was started from",
            where=where,
            remedy="name the right one with --base; policy.dtype must be the run's too",
        )
    if checkpoint is None:
        return
    if checkpoint.state.get("base_digest", base_digest) != base_digest:
        raise IntegrityError("the checkpoint was trained on another base than its run", where=where)
    if (adapter := checkpoint.state.get("adapter")) is not None:
        attach(policy, LoraSettings.stored(adapter), seed=0)  # what it holds at first is overwritten
    parameters = dict(policy.model.named_parameters())
    for name, weight in checkpoint.weights.items():
        if name not in parameters or parameters[name].shape != weight.shape:
            raise IntegrityError(f"the base policy has no {name} of shape {list(weight.shape)}", where=where)
        parameters[name].copy_(weight)
    check_recorded(policy, checkpoint)


def check_recorded(policy: Any, checkpoint: ckpt.Checkpoint) -> None:
    """Hold a policy with the surface of a checkpoint against the adapter and the digest that the checkpoint recorded.

    Raises:
        IntegrityError: its pairs count differently, or it has another digest, so it has another base.
    """
    adapter = checkpoint.state.get("adapter")
    if adapter is not None and policy.lora is not None and policy.lora.alpha != (alpha := adapter["alpha"]):
        raise IntegrityError(
            f"the checkpoint's adapter has alpha {alpha:g}, not {policy.lora.alpha:g}",
            where=str(checkpoint.path),
            remedy="resume with the surface that the run was started with",
        )
    recorded = checkpoint.state.get("policy_digest")
    if recorded is not None and policy.digest() != recorded:
        raise IntegrityError(
            "base and surface do not give the weights that the checkpoint recorded",
            where=str(checkpoint.path),
            remedy="restore the base policy that the run was started from",
        )


def base_spec(reader: ConfigReader, elsewhere: str | None) -> dict[str, Any]:
    """The node of a run's base policy.

    Args:
        reader: the run's configuration.
        elsewhere: the directory where the base is now; the commit of a hub id does not go with it.
    """
    node = reader.component_spec("policy")
    if elsewhere is None:
        return node
    return {**node, "checkpoint": elsewhere, **({"revision": None} if "revision" in node else {})}


@contextmanager
def base_of(run: Path | str | None) -> Iterator[None]:
    """A block that reads the base policy of a run from where it was, which is gone: a part of the run is missing then,
    and no configuration is wrong. Without a run nothing changes.

    Raises:
        IntegrityError: it cannot be read there.
    """
    try:
        yield
    except ConfigError as error:
        if run is None:
            raise
        raise IntegrityError(
            f"the base policy that the run was started from is not there: {error.what}",
            where=f"{run}: {error.where}",
            remedy="restore it there; export and replay take it from elsewhere with --base",
        ) from error
