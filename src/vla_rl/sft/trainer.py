"""Supervised fine-tuning of a policy on demonstrations, of either head or both; reads from top to bottom.

In: a policy, training rows, settings, and a callable that evaluates. Out: `policy/` (the final one),
`policy_step_NNNNNN/` (extra ones), `sft.jsonl`, `eval.jsonl` and resume points. The batch and the augmentation of step
k, and the noise of its flow term, are a function of (seed, k) alone, so a resumed run repeats an unbroken one: bit for
bit on the CPU. Weights and optimiser stay in float32, in mixed precision too. How a policy is evaluated is not known
here, nor from what it may start (`vla_rl.sft.transitions`).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_rl.errors import StoppedRun, UsageError
from vla_rl.policy.expert_files import has_expert
from vla_rl.policy.flow import own_expert
from vla_rl.policy.heads import AR
from vla_rl.policy.policy import VlaPolicy
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rollout.events import OnEvent
from vla_rl.rollout.jsonl import append_jsonl, read_jsonl, repair_jsonl
from vla_rl.sft.average import WeightAverage
from vla_rl.sft.batches import Batches
from vla_rl.sft.dataset import TrainingRows
from vla_rl.sft.events import PolicySaved, SftEvaluated, SftLogged, SftStopped
from vla_rl.sft.objective import token_accuracy
from vla_rl.sft.optimiser import adamw, set_rates
from vla_rl.sft.terms import Passes, loss_terms
from vla_rl.sft.transitions import Objective, heads_after

LOG_FILE, EVAL_FILE, RESUME = "sft.jsonl", "eval.jsonl", "resume"
AVERAGE, EXPERT = "average", "action_expert"
TOKENS = Objective()


@dataclass(frozen=True)
class SftResult:
    """How a call of `SftTrainer.run` ended.

    Attributes:
        step: updates done so far.
        complete: all of them are done and evaluated, and the final policy is written.
        policy_dir: the final policy, once complete.
        loss: mean loss of the last log row, None before the first.
        holes: levels that the action codec could not write, over all training rows.
        wall_s: wall time of this call.
    """

    step: int
    complete: bool
    policy_dir: Path | None
    loss: float | None
    holes: int
    wall_s: float


class SftTrainer:
    """AdamW with linear warm-up and cosine decay.

    Args:
        policy: weights to train, in place; its expert is loaded if the objective has a flow term.
        rows: demonstrations, on the policy's device.
        run_dir: where everything is written; a checkpoint in it is continued.
        seed: run seed.
        objective: what is minimised, and so what is trained.
        steps, batch_rows: updates and rows per update.
        lr, warmup_steps, beta1, beta2, weight_decay, grad_clip: AdamW; decay on matrices only; `lr` is the peak.
        expert_lr: peak of the action expert; None for `lr`.
        shift_px, state_jitter_bins: augmentation.
        ema: decay of the averaged weights (`average`), which are then what is saved and evaluated; 0 for none.
        precision: of the forward pass: ``float32``, ``bfloat16`` (mixed), or ``auto``: mixed on a GPU.
        save_at: updates after which an extra policy directory is written.
        eval_every: updates between evaluations; the first is before all updates, the last after them. 0 for none.
        evaluate: called with the number of updates done while the policy holds the weights in question; returns a row
            for `eval.jsonl`, to which `step` and `wall_s` are added.
        log_every: updates per log row.
        checkpoint_every_s: seconds between resume points.
        compile: compile the passes of trunk and expert (worth it on a GPU from some hundred updates on).
        max_wall_s: stop cleanly after this many seconds, or None.
        on_event: gets `SftLogged`, `SftEvaluated`, `PolicySaved`, `SftStopped`.
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
        ema: float,
        precision: str,
        save_at: Sequence[int],
        eval_every: int,
        log_every: int,
        checkpoint_every_s: float,
        compile: bool,
        max_wall_s: float | None,
        on_event: OnEvent,
        objective: Objective = TOKENS,
        expert_lr: float | None = None,
        evaluate: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        late = [step for step in save_at if not 0 < step <= steps]
        if late:
            raise UsageError(f"step {late[0]} is not one of the {steps} steps", where="sft.save_at")
        if eval_every and evaluate is None:
            raise UsageError("there is nothing to evaluate with", where="sft.eval_every", remedy="give evaluate")
        cuda = rows.device.type == "cuda"
        self.mixed = precision == "bfloat16" or (precision == "auto" and cuda)
        self.identity = {
            "seed": seed, "steps": steps, "batch_rows": batch_rows, "lr": lr, "warmup_steps": warmup_steps,
            "betas": [beta1, beta2], "weight_decay": weight_decay, "grad_clip": grad_clip, "shift_px": shift_px,
            "state_jitter_bins": state_jitter_bins, "ema": ema, "mixed precision": self.mixed, "log_every": log_every,
            "objective": [objective.kind, objective.ce_weight, objective.insulate], "expert_lr": expert_lr,
            "data": rows.digest,
        }  # fmt: skip
        if objective.has_flow:
            self.identity["chunks"] = rows.chunk_digest
        if not objective.trains_trunk:  # checkpoints do not hold what is not trained
            self.identity["trunk"] = policy.digest(AR)
        self.policy, self.objective = policy, objective
        self.run_dir, self.device, self.steps = run_dir, rows.device, steps
        self.warmup_steps, self.grad_clip = warmup_steps, grad_clip
        self.save_at, self.log_every, self.checkpoint_every_s = frozenset(save_at), log_every, checkpoint_every_s
        self.eval_every, self.evaluate = eval_every, evaluate
        self.max_wall_s, self.on_event = max_wall_s, on_event
        flow = own_expert(policy).config if objective.has_flow else None
        self.batches = Batches(rows, seed, batch_rows, shift_px, state_jitter_bins, flow)
        trunk, expert = self._trained()
        self.parameters = trunk | expert
        parts = [(list(trunk.values()), lr), (list(expert.values()), expert_lr or lr)]
        self.optimizer = adamw([part for part in parts if part[0]], (beta1, beta2), weight_decay, fused=cuda)
        # Insulated, not even the length of the flow term's gradient may reach the trunk.
        apart = [trunk, expert] if objective.insulate else [self.parameters]
        self.clipped = [list(part.values()) for part in apart if part]
        self.average = WeightAverage(self.parameters, ema)
        self.passes = Passes.of(policy, compiled=compile)
        self.step, self.started_from = 0, policy.heads
        self.window: list[dict[str, Tensor]] = []  # what the log averages, since its last row
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
        if self.objective.has_flow:
            own_expert(self.policy).requires_grad_(True)
        saved_at = time.monotonic()
        while self.step < self.steps or self._evaluation_due():
            if self.max_wall_s is not None and time.monotonic() - self.started > self.max_wall_s:
                self._checkpoint()
                self.on_event(SftStopped(self.step, self.steps, str(self.run_dir)))
                return self._result(None)
            if self._evaluation_due():
                self._evaluate()
                continue
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

    def _trained(self) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.nn.Parameter]]:
        """What the objective trains, by name: of the trunk and of the expert."""
        trunk = dict(self.policy.model.named_parameters()) if self.objective.trains_trunk else {}
        expert = own_expert(self.policy).named_parameters() if self.objective.has_flow else ()
        return trunk, {f"{EXPERT}.{name}": parameter for name, parameter in expert}

    def _update(self) -> dict[str, Tensor]:
        batch = self.batches.of_step(self.step)
        set_rates(self.optimizer, self.step, self.steps, self.warmup_steps)
        terms = loss_terms(self.objective, self.policy, batch, mixed=self.mixed, passes=self.passes)
        self.optimizer.zero_grad(set_to_none=True)
        terms.total.backward()
        norms = [torch.nn.utils.clip_grad_norm_(part, self.grad_clip) for part in self.clipped]
        self.optimizer.step()
        self.average.update(self.step)
        measured = {"loss": terms.total, "grad_norm": norms[0] if len(norms) == 1 else torch.stack(norms).norm()}
        if terms.tokens is not None and terms.logits_RTV is not None:
            accuracy = token_accuracy(terms.logits_RTV.detach(), batch.labels_RT)
            measured |= {"token_loss": terms.tokens, "accuracy": accuracy}
        if terms.flow is not None:
            measured["flow_loss"] = terms.flow
        return {name: value.detach() for name, value in measured.items()}

    def _evaluation_due(self) -> bool:
        """Before the first update, on the cadence and after the last one, unless it is on record."""
        if not self.eval_every or (self.step % self.eval_every and self.step != self.steps):
            return False
        return self.step not in self.evaluated

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        started = time.monotonic()
        with self.average.in_place():
            row = self.evaluate(self.step)
        wall_s = time.monotonic() - started
        append_jsonl(self.run_dir / EVAL_FILE, [{"step": self.step, **row, "wall_s": wall_s}])
        self.evaluated.add(self.step)
        self.logged_at += wall_s  # rows a second are those of training
        self.on_event(SftEvaluated(self.step, self.steps, row))

    # ------------------------------------------------------------------------------------------------ what is written
    def _log(self) -> None:
        means = {name: float(torch.stack([m[name] for m in self.window]).double().mean()) for name in self.window[0]}
        loss = means["loss"]
        if not math.isfinite(loss):
            raise StoppedRun(
                f"the loss is {loss} at step {self.step}",
                where="sft.lr",
                remedy="lower sft.lr or lengthen sft.warmup_steps",
            )
        now = time.monotonic()
        rows_per_s = len(self.window) * self.batches.size / max(now - self.logged_at, 1e-9)
        event = SftLogged(
            step=self.step, steps=self.steps, loss=loss, token_loss=means.get("token_loss"),
            flow_loss=means.get("flow_loss"), accuracy=means.get("accuracy"), grad_norm=means["grad_norm"],
            lr=self.optimizer.param_groups[0]["lr"], rows_per_s=rows_per_s, wall_s=now - self.started,
        )  # fmt: skip
        append_jsonl(self.run_dir / LOG_FILE, [vars(event)])
        self.on_event(event)
        self.window, self.logged_at, self.last_loss = [], now, loss

    def _save_policy(self, name: str) -> Path:
        final, temporary = self.run_dir / name, self.run_dir / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        self.policy.heads = heads_after(self.started_from, self.objective, has_expert=has_expert(self.policy))
        with self.average.in_place():
            self.policy.save(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        self.on_event(PolicySaved(self.step, str(final)))
        return final

    def _checkpoint(self) -> None:
        root, window = self.run_dir / RESUME, [{k: float(v) for k, v in measured.items()} for measured in self.window]
        state = {"identity": self.identity, "window": window, "last_loss": self.last_loss}
        extra = {AVERAGE: packed} if (packed := self.average.packed()) else {}
        parameters = list(self.parameters.items())
        ckpt.save_checkpoint(root, self.step, parameters, self.optimizer, state, extra=extra)
        ckpt.prune(root, keep=1)

    def _restore(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        if found := ckpt.checkpoints(self.run_dir / RESUME):
            loaded = ckpt.load_checkpoint(found[-1])
            changed = [k for k, v in self.identity.items() if loaded.state["identity"].get(k) != v]
            if changed:
                raise UsageError(
                    f"the stopped run was made with another {', '.join(changed)}",
                    where=str(found[-1]),
                    remedy="repeat its settings to continue it, or name a new directory",
                )
            ckpt.restore(loaded, list(self.parameters.items()), self.optimizer)
            self.average.restore(loaded.extra.get(AVERAGE, {}))
            self.step, self.last_loss = loaded.step, loaded.state["last_loss"]
            self.window = [
                {name: torch.tensor(value, device=self.device) for name, value in measured.items()}
                for measured in loaded.state["window"]
            ]
        for name in (LOG_FILE, EVAL_FILE):
            repair_jsonl(self.run_dir / name, lambda row: row["step"] <= self.step)
        self.evaluated = {row["step"] for row in read_jsonl(self.run_dir / EVAL_FILE)}

    def _result(self, policy_dir: Path | None) -> SftResult:
        wall_s = time.monotonic() - self.started
        return SftResult(self.step, policy_dir is not None, policy_dir, self.last_loss, self.batches.rows.holes, wall_s)
