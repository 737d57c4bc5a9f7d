"""Keys of demonstrations and of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from vla_rl.config.schema.key import key


@dataclass
class DemosConfig:
    seeds: str = key("100000-102999", "spawn seeds that the expert attempts")
    workers: int = key(2, "recording processes", at_least=1)
    shard_episodes: int = key(10, "episodes per shard; a finished shard is never recorded again", at_least=1)
    success_only: bool = key(
        True, "leave failed episodes out (strict test); false stores them too, with no tick marked as taught"
    )
    noise_share: float = key(
        0.5, "share of episodes with joint noise while the labels stay clean", at_least=0, at_most=1
    )
    noise_deg: list[float] = key([0.5, 2.0], "range of that noise's standard deviation, degrees, drawn per episode")
    start_jitter_deg: float = key(3.0, "spread (standard deviation) of a noisy episode's start pose", at_least=0)
    miss_share: float = key(
        0.35,
        "share of episodes with a deliberate miss and its recovery (the miss is not taught)",
        at_least=0,
        at_most=1,
    )
    calibration_error_deg: list[float] = key(
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "by how much the recording arm misjudges its six joints: added to all joint angles as they are stored, so that "
        "a policy that learns from them is off by it",
    )
    from_run: str | None = key(
        None, "training run (checkpoint.keep_rows=true) whose rollouts are replayed and stored, instead of the expert"
    )
    task: str = key("Pick up the toy boat and place it on the wooden disk.", "instruction stored with every episode")


@dataclass
class TwinConfig:
    patch_px: int = key(14, "side of a vision patch; 2x2 patches become one image token", at_least=1)
    vision_width: int = key(128, "width of the vision transformer", at_least=1)
    vision_layers: int = key(4, "layers of the vision transformer", at_least=1)
    vision_mlp: int = key(512, "hidden width of its feed-forward layers", at_least=1)
    text_width: int = key(192, "width of the decoder", at_least=1)
    text_layers: int = key(6, "layers of the decoder", at_least=1)
    text_kv_heads: int = key(2, "key/value heads of the decoder (each head is 32 wide)", at_least=1)
    text_mlp: int = key(576, "hidden width of its feed-forward layers", at_least=1)
    adapter_mlp: int = key(384, "hidden width of the projector from vision to text", at_least=1)
    rope_theta: float = key(1000.0, "base of the rotary positions", above=0)


@dataclass
class SftConfig:
    demos: str = key(MISSING, "LeRobot v3 dataset, e.g. one written by `vla-rl demos`")
    frame_stride: int = key(
        4,
        "ticks between the starts of training windows of an episode (1: every tick); the phase is drawn",
        at_least=1,
        unit="ticks",
    )
    episodes: int | None = key(None, "train on this many episodes, from the first one on (null: all)", at_least=1)
    chunk_ticks: int = key(30, "ticks of a target chunk (30 ticks are one second)", at_least=1)
    base: str | None = key(
        None, "start from this policy checkpoint, or give this model action tokens (null: a fresh twin)"
    )
    base_revision: str | None = key(None, "commit that a hub id in sft.base is pinned to")
    base_norm_tag: str | None = key(None, "normalisation tag of sft.base, where it has several")
    base_fast_tokenizer: str | None = key(None, "directory of the FAST artifact of sft.base, where it is kept apart")
    objective: str = key(
        "ar",
        "ar: cross-entropy of the action tokens; flow: the action expert's velocity; joint: flow + ce_weight x ar",
        choices=("ar", "flow", "joint"),
    )
    ce_weight: float = key(1.0, "weight of the token term under sft.objective=joint", above=0)
    insulate: bool = key(
        False,
        "the flow term trains the action expert alone: its gradient is kept out of the trunk (knowledge insulation)",
    )
    expert: str = key(
        "auto",
        "auto: train the action expert that sft.base stores (a fresh twin gets a new one); fresh: draw one anew",
        choices=("auto", "fresh"),
    )
    expert_width: int = key(96, "width of a new action expert, a multiple of 32", at_least=32)
    expert_lr: float | None = key(None, "peak learning rate of the action expert (null: sft.lr)", above=0)
    allow_stale_head: bool = key(
        False, "train although the head that the objective leaves out goes stale; the checkpoint then says so"
    )
    steps: int = key(1700, "optimiser steps", at_least=1)
    batch_rows: int = key(512, "rows per step", at_least=1)
    lr: float = key(8e-4, "AdamW peak learning rate, cosine to 3 % of it", above=0)
    warmup_steps: int = key(200, "steps of linear warm-up", at_least=0)
    beta1: float = key(0.9, "AdamW first-moment decay", at_least=0, at_most=0.99999)
    beta2: float = key(0.95, "AdamW second-moment decay", at_least=0, at_most=0.99999)
    weight_decay: float = key(0.05, "AdamW weight decay, on matrices only", at_least=0)
    grad_clip: float = key(1.0, "global gradient norm is clipped to this", above=0)
    shift_px: int = key(3, "random image shift per camera, pixels", at_least=0)
    state_jitter_bins: int = key(2, "random jitter of the discretised state, bins", at_least=0)
    codec_scale: float = key(15.0, "FAST quantisation scale; 10 is the released one", above=0)
    codec_vocab: int = key(512, "size of the fitted action vocabulary", at_least=1)
    ema: float = key(
        0.0,
        "decay of averaged weights, which are then what is saved and evaluated, e.g. 0.999 (0: none)",
        at_least=0,
        at_most=0.99999,
    )
    precision: str = key(
        "auto",
        "of the forward pass: float32, bfloat16 (mixed: weights stay float32), auto (mixed on a GPU, else float32)",
        choices=("auto", "float32", "bfloat16"),
    )
    eval_every: int = key(
        0,
        "steps between evaluations on eval.seeds, the first one before all steps, the last after (0: none)",
        at_least=0,
        unit="steps",
    )
    eval_head: str | None = key(
        None,
        "which head those evaluations are of (null: flow under sft.objective=flow, else ar)",
        choices=("ar", "flow"),
    )
    allow_holes: bool = key(
        False, "also learn from chunks that the action codec of sft.base cannot write whole: their labels are short"
    )
    save_at: list[int] = key([], "steps at which an extra policy directory is written", unit="steps")
    log_every: int = key(50, "steps between log rows", at_least=1, unit="steps")
    checkpoint_every_s: float = key(120.0, "seconds between resume points", above=0)
    compile: bool = key(False, "compile the forward pass; pays on a GPU from some hundred steps on")
