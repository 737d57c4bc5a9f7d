"""Supervised fine-tuning of a policy on demonstrated action tokens; reads from top to bottom.

In: a policy, training rows and settings. Out: `policy/` (the final one), `policy_step_NNNNNN/` (extra ones),
`sft.jsonl` and resume points. The batch and the augmentation of step k are a function of (seed, k) alone, so a resumed
run repeats an unbroken one: bit for bit on the CPU. Weights and optimiser stay in float32; a GPU computes under bf16
autocast. Evaluation of what was trained is not done here.

Shapes: R rows, C cameras, T tokens, V bins, J joints.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_rl.errors import StoppedRun, UsageError
from vla_rl.policy.policy import VlaPolicy
from vla_rl.rollout.events import OnEvent
from vla_rl.rollout.files import append_jsonl, repair_jsonl
from vla_rl.seeds import stream
from vla_rl.sft.augment import draw_offsets, jitter_state, shift_frames
from vla_rl.sft.checkpoint import checkpoints, load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from vla_rl.sft.dataset import TrainingRows
from vla_rl.sft.events import PolicySaved, SftLogged, SftStopped
from vla_rl.sft.objective import labels, token_accuracy, token_cross_entropy

LOG_FILE = "sft.jsonl"
FINAL_LR_SHARE = 0.03


@dataclass(frozen=True)
class SftResult:
    """How a call of `SftTrainer.run` ended.

    Attributes:
        step: updates done so far; `complete` when that is all of them.
        policy_dir: the final policy, once complete.
        loss: mean loss of the last log row (nats per token), None before the first.
        wall_s: wall time of this call.
    """

    step: int
    complete: bool
    policy_dir: Path | None
    loss: float | None
    wall_s: float


class SftTrainer:
    """AdamW with linear warm-up and cosine decay on the token cross-entropy.

    Args:
        policy: weights to train, in place.
        rows: demonstrations, on the policy's device.
        run_dir: where everything is written; a checkpoint in it is continued.
        seed: run seed.
        steps, batch_rows: updates and rows per update.
        lr, warmup_steps, beta1, beta2, weight_decay, grad_clip: AdamW; decay on matrices only; `lr` is the peak.
        shift_px, state_jitter_bins: augmentation.
        save_at: updates after which an extra policy directory is written.
        log_every: updates per log row.
        checkpoint_every_s: seconds between resume points.
        compile: compile the forward pass (worth it on a GPU from some hundred updates on).
        max_wall_s: stop cleanly after this many seconds, or None.
        on_event: gets `SftLogged`, `PolicySaved`, `SftStopped`.
    """

    def __init__(
        self,
        *,
        policy: VlaPolicy,
        rows: TrainingRows,
        run_dir: Path,
        seed: int,
        steps: int,
        batch_rows: int,
        lr: float,
        warmup_steps: int,
        beta1: float,
        beta2: float,
        weight_decay: float,
        grad_clip: float,
        shift_px: int,
        state_jitter_bins: int,
        save_at: Sequence[int],
        log_every: int,
        checkpoint_every_s: float,
        compile: bool,
        max_wall_s: float | None,
        on_event: OnEvent,
    ) -> None:
        settings = {
            "seed": seed, "steps": steps, "batch_rows": batch_rows, "lr": lr, "warmup_steps": warmup_steps,
            "betas": [beta1, beta2], "weight_decay": weight_decay, "grad_clip": grad_clip, "shift_px": shift_px,
            "state_jitter_bins": state_jitter_bins, "log_every": log_every,
        }  # fmt: skip
        self.identity = {**settings, "data": rows.digest}
        late = [step for step in save_at if not 0 < step <= steps]
        if late:
            raise UsageError(f"step {late[0]} is not one of the {steps} steps", where="sft.save_at")
        self.policy, self.rows, self.run_dir, self.seed = policy, rows, run_dir, seed
        self.steps, self.batch_rows, self.lr, self.warmup_steps, self.grad_clip = (
            steps,
            batch_rows,
            lr,
            warmup_steps,
            grad_clip,
        )
        self.shift_px, self.state_jitter_bins = shift_px, state_jitter_bins
        self.save_at, self.log_every, self.checkpoint_every_s = frozenset(save_at), log_every, checkpoint_every_s
        self.max_wall_s, self.on_event = max_wall_s, on_event
        self.device = rows.device
        self.parameters = dict(policy.model.named_parameters())
        self.names = {parameter: name for name, parameter in self.parameters.items()}
        self.optimizer = _adamw(self.parameters, lr, (beta1, beta2), weight_decay, fused=self.device.type == "cuda")
        self.logits = torch.compile(policy.logits) if compile else policy.logits
        self.step = 0
        self.window: list[tuple[Tensor, ...]] = []  # (loss, accuracy, gradient norm) since the last log row
        self.last_loss: float | None = None

    def run(self) -> SftResult:
        """Train from the newest checkpoint, if there is one, to the last step or the wall limit.

        Raises:
            StoppedRun: the loss is not finite.
            UsageError: the checkpoint is of a run with other settings or data.
            IntegrityError: a damaged checkpoint.
        """
        self.started = self.logged_at = time.monotonic()
        self._restore()
        self.policy.model.requires_grad_(True)
        saved_at = time.monotonic()
        while self.step < self.steps:
            if self.max_wall_s is not None and time.monotonic() - self.started > self.max_wall_s:
                self._checkpoint()
                self.on_event(SftStopped(self.step, self.steps, str(self.run_dir)))
                return self._result(None)
            self.window.append(self._update())
            self.step += 1
            if self.step % self.log_every == 0 or self.step == self.steps:
                self._log()
            if self.step in self.save_at:
                self._save_policy(f"policy_step_{self.step:06d}")
            if time.monotonic() - saved_at > self.checkpoint_every_s:
                self._checkpoint()
                saved_at = time.monotonic()
        return self._result(self._save_policy("policy"))

    def _update(self) -> tuple[Tensor, ...]:
        frames, state_bins_RJ, bins_RT, labels_RT = self._batch()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.lr, self.warmup_steps)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits_RTV = self.logits(frames, state_bins_RJ, bins_RT)
        loss = token_cross_entropy(logits_RTV, labels_RT)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.grad_clip)
        self.optimizer.step()
        return loss.detach(), token_accuracy(logits_RTV.detach(), labels_RT), norm

    def _batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rng = stream("sft-batch", self.seed, self.step)
        row_R = self.rows.usable[rng.integers(len(self.rows.usable), size=self.batch_rows)]
        index_R = torch.from_numpy(row_R).to(self.device)
        frames = self.rows.frames.gather(row_R)
        state_bins_RJ = self.rows.state_bins_NJ[index_R]
        offsets = draw_offsets(
            rng, rows=self.batch_rows, cameras=frames.shape[1], joints=state_bins_RJ.shape[1],
            shift_px=self.shift_px, jitter_bins=self.state_jitter_bins,
        )  # fmt: skip
        if self.shift_px:
            frames = shift_frames(frames, offsets.shift_RC2.to(self.device))
        if self.state_jitter_bins:
            state_bins_RJ = jitter_state(state_bins_RJ, offsets.jitter_RJ.to(self.device))
        bins_RT = self.rows.bins_NT[index_R]
        return frames, state_bins_RJ, bins_RT, labels(bins_RT, self.rows.length_N[index_R])

    # ------------------------------------------------------------------------------------------------ what is written
    def _log(self) -> None:
        loss, accuracy, norm = (float(torch.stack(values).double().mean()) for values in zip(*self.window, strict=True))
        if not math.isfinite(loss):
            raise StoppedRun(
                f"the loss is {loss} at step {self.step}",
                where="sft.lr",
                remedy="lower sft.lr or lengthen sft.warmup_steps",
            )
        now = time.monotonic()
        event = SftLogged(
            step=self.step, steps=self.steps, loss=loss, accuracy=accuracy, grad_norm=norm,
            lr=learning_rate(self.step - 1, self.steps, self.lr, self.warmup_steps),
            rows_per_s=len(self.window) * self.batch_rows / max(now - self.logged_at, 1e-9), wall_s=now - self.started,
        )  # fmt: skip
        append_jsonl(self.run_dir / LOG_FILE, [vars(event)])
        self.on_event(event)
        self.window, self.logged_at, self.last_loss = [], now, loss

    def _save_policy(self, name: str) -> Path:
        final, temporary = self.run_dir / name, self.run_dir / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        self.policy.save(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        self.on_event(PolicySaved(self.step, str(final)))
        return final

    def _checkpoint(self) -> None:
        tensors = {f"weight/{name}": p for name, p in self.parameters.items()} | optimizer_tensors(
            self.optimizer, self.names
        )
        window = [[float(value) for value in values] for values in self.window]
        save_checkpoint(
            self.run_dir, self.step, tensors, {"identity": self.identity, "window": window, "last_loss": self.last_loss}
        )

    def _restore(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        found = checkpoints(self.run_dir)
        if found:
            tensors, state = load_checkpoint(found[-1])
            changed = [k for k, v in self.identity.items() if state["identity"].get(k) != v]
            if changed:
                raise UsageError(
                    f"the stopped run was made with another {', '.join(changed)}",
                    where=str(found[-1]),
                    remedy="repeat its settings to continue it, or name a new directory",
                )
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(tensors[f"weight/{name}"])
            restore_optimizer(self.optimizer, self.names, tensors)
            self.step, self.last_loss = state["step"], state["last_loss"]
            self.window = [
                tuple(torch.tensor(value, device=self.device) for value in values) for values in state["window"]
            ]
        repair_jsonl(self.run_dir / LOG_FILE, lambda row: row["step"] <= self.step)

    def _result(self, policy_dir: Path | None) -> SftResult:
        return SftResult(
            self.step, self.step == self.steps, policy_dir, self.last_loss, time.monotonic() - self.started
        )


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Rate of update `step` (from 0): cosine from `peak` to 3 % of it over `steps`, times a linear warm-up."""
    decay = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * (1 + math.cos(math.pi * step / steps)) / 2
    return peak * decay * min(1.0, (step + 1) / max(1, warmup_steps))


def _adamw(
    parameters: dict[str, Any], lr: float, betas: tuple[float, float], decay: float, *, fused: bool
) -> torch.optim.AdamW:
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)
