"""Typed configuration: every key, its default, its unit and what it is for.

In: nothing. Out: dataclasses that type the Hydra composition, and the table that registers them. This is the only place
with defaults. Options under `conf/` name a schema and the values in which they differ from it. A component (a node
with `_target_`) hands all of its keys to the constructor that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


def key(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A configuration key: default, help text (`--help-keys`) and the values it may take (checked by `compose`)."""
    metadata = {"help": help, "above": above, "at_least": at_least, "at_most": at_most, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# ---------------------------------------------------------------------------------------------------- the run itself
@dataclass
class RunConfig:
    name: str = key("run", "name of the run; its directory is outputs/<name>/<run id>")
    dir: str | None = key(None, "run directory, created exclusively (default: outputs/<name>/<UTC time>-<random>)")
    resume: str | None = key(None, "run directory of a stopped run, to be continued with its own configuration")
    seed: int = key(0, "run seed: enters every sampling key", at_least=0)
    steps: int = key(3, "number of GRPO updates", at_least=0)
    max_wall_s: float | None = key(
        None, "seconds until the run stops at the next safe point and says how to resume", at_least=0
    )
    device: str = key("auto", "auto, cpu or cuda", choices=("auto", "cpu", "cuda"))
    threads: int = key(2, "torch threads of the parent process; part of what makes a run repeatable", at_least=1)


@dataclass
class DemosJobConfig:
    dir: str | None = key(None, "output directory, created exclusively (default: outputs/<command>/<run id>)")
    resume: str | None = key(None, "output directory of a stopped job, to be continued with its own configuration")
    max_wall_s: float | None = key(
        None, "seconds until the job stops at the next safe point and says how to resume", at_least=0
    )


@dataclass
class SftJobConfig(DemosJobConfig):
    seed: int = key(0, "run seed: decides the fresh weights, every batch and every augmentation", at_least=0)
    device: str = key("auto", "auto, cpu or cuda", choices=("auto", "cpu", "cuda"))
    threads: int = key(2, "torch threads of the parent process; part of what makes a job repeatable", at_least=1)


@dataclass
class EvalJobConfig:
    dir: str | None = key(None, "output directory, created exclusively (default: outputs/<command>/<run id>)")
    seed: int = key(0, "run seed: enters every sampling key", at_least=0)
    device: str = key("auto", "auto, cpu or cuda", choices=("auto", "cpu", "cuda"))
    threads: int = key(
        2, "torch threads of the parent process; part of what makes an evaluation repeatable", at_least=1
    )


@dataclass
class GeometryConfig:
    seeds: int = key(8, "spawn seeds (groups) per step", at_least=1)
    draws: int = key(8, "draws (episodes) per seed", at_least=2)
    temperature: float = key(1.0, "sampling temperature of the training rollouts", above=0)
    train_seed_base: int = key(200000, "first training seed; step k uses base + k*seeds and the following", at_least=0)
    min_group_std_cm: float = key(0.05, "groups whose rewards spread less (population std, cm) are dropped", at_least=0)
    advantage_clip: float | None = key(None, "advantages are clipped to +-this; null leaves them", above=0)


@dataclass
class LossConfig:
    clip_low: float = key(0.8, "lower bound of the token ratio", above=0, at_most=1)
    clip_high: float = key(1.28, "upper bound of the token ratio (clip-higher)", at_least=1)
    weighting: str = key(
        "token",
        "token: every token of the wave counts the same; episode: every episode does",
        choices=("token", "episode"),
    )
    old_logp: str = key(
        "recompute",
        "old log-probabilities: recompute (the trainer's own forward pass) or rollout",
        choices=("recompute", "rollout"),
    )


@dataclass
class OptimConfig:
    lr: float = key(5e-6, "AdamW learning rate", above=0)
    beta1: float = key(0.9, "AdamW first-moment decay", at_least=0, at_most=0.99999)
    beta2: float = key(0.95, "AdamW second-moment decay", at_least=0, at_most=0.99999)
    eps: float = key(1e-6, "AdamW epsilon", above=0)
    weight_decay: float = key(0.0, "AdamW decoupled weight decay", at_least=0)
    grad_clip: float = key(1.0, "global gradient norm is clipped to this", above=0)
    warmup_steps: int = key(0, "the learning rate rises linearly over this many updates", at_least=0)
    microbatch_rows: int = key(
        1, "rows per forward and backward pass (changes memory and speed, not the gradient)", at_least=1
    )


@dataclass
class EvalConfig:
    seeds: str = key("200-219", "held-out environment seeds, e.g. 0-99 or 300,301")
    temperature: float = key(0.0, "0 is greedy decoding", at_least=0)
    slots: int = key(32, "episodes that run side by side", at_least=1)
    frames: str = key(
        "own",
        "what the policy is shown: its own pictures, those of another episode (its blind floor), black ones, the first "
        "pair ever seen (only the state tells then), or its own with one camera black",
        choices=("own", "foreign", "black", "still", "top_black", "wrist_black"),
    )
    traces: bool = key(False, "also write traces.jsonl: distance and grip of every episode, tick by tick")


@dataclass
class CheckpointConfig:
    every: int = key(1, "updates between checkpoints", at_least=1)
    keep: int = key(2, "newest checkpoints that are kept", at_least=1)
    keep_rows: bool = key(False, "keep the replay rows of a wave after its update has been checkpointed")


# ------------------------------------------------------------------------------------------------------- components
@dataclass
class PolicyConfig:
    _target_: str = "vla_rl.policy.policy.load_policy"
    checkpoint: str = key(MISSING, "bundled:<name>, a checkpoint directory, or a hub id with its revision")
    revision: str | None = key(None, "commit (40 hex digits) that a hub id is pinned to")
    dtype: str = key("float32", "number format of the network", choices=("float32", "bfloat16"))
    norm_tag: str | None = key(None, "normalisation tag, where the checkpoint has several (null: its only one)")
    joint_frame: str | None = key(
        None, "frame of the tables, if they do not tell: rig (v3.0) or v21", choices=("rig", "v21")
    )
    fast_tokenizer: str | None = key(None, "directory or hub id of the FAST artifact (null: the checkpoint's own)")
    fast_revision: str | None = key(None, "commit that a hub id of the FAST artifact is pinned to")
    serve_head: str = key("ar", "which head acts: ar is the token head")
    task: str = key("Pick up the toy boat and place it on the wooden disk.", "instruction given to the policy")
    grammar: str = key(
        "reachable",
        "legal action bins: reachable (those the codec's encoder can emit) or documented (every one that decodes)",
        choices=("reachable", "documented"),
    )
    allow_scene_mismatch: bool = key(
        False, "let the policy act in another scene than the one it was trained in; every result then says so"
    )


@dataclass
class ExpertConfig:
    _target_: str = "vla_rl.evals.expert.ExpertEvaluator"
    workers: int = key(2, "processes that run the scripted expert", at_least=1)


@dataclass
class SamplerConfig:
    _target_: str = "vla_rl.policy.sampler.GrammarSampler"
    batch_rows: int = key(16, "rows of one predict batch; smaller ones are padded to it", at_least=1)
    mode: str = key(
        "grammar_masked",
        "grammar_masked draws among legal bins; reference is the released code's unconstrained greedy decoding",
        choices=("grammar_masked", "reference"),
    )
    keys: str = key(
        "named",
        "random streams: named (ours), documented, documented_block (the older program) or device (computed there)",
        choices=("named", "documented", "documented_block", "device"),
    )


@dataclass
class LookConfig:
    cameras: str = key(
        "close",
        "close: the near top camera and the wrist camera of the robot model; documented: the documented pair",
        choices=("close", "documented"),
    )
    mount: str = key(
        "standard",
        "wrist-camera bracket: standard, or flipped by 180 degrees (its collision boxes too)",
        choices=("standard", "flipped"),
    )
    lens: str = key(
        "none",
        "none, equidistant (fisheye), or fitted (equidistant on top, fitted polynomial on the wrist)",
        choices=("none", "equidistant", "fitted"),
    )
    grade: str = key("none", "per-channel affine grade: none or documented", choices=("none", "documented"))
    blur_px: float = key(0.0, "sigma of the optical blur, pixels of a picture with 480 rows", at_least=0, at_most=20)
    noise_counts: float = key(0.0, "sigma of the sensor noise, counts of 255", at_least=0, at_most=100)
    jitter: bool = key(False, "boat tint, sun, warmth, fill light and table tone are drawn anew at each reset")
    shadow_strength: float = key(
        0.0, "share of light that a contact shadow takes from the top picture", at_least=0, at_most=1
    )
    shadow_px: float = key(
        24.0, "sigma of the contact shadow's edge, pixels of a picture with 480 rows and fovy 72", at_least=0
    )
    clutter: str = key(
        "none",
        "none, standins (shapes) or patches (cut-outs on the table) of mouse, mug, laptop and circuit board",
        choices=("none", "standins", "patches"),
    )
    patches: str | None = key(None, "folder of RGBA cut-outs with patches.json; null: drawn by the program")
    composite: bool = key(False, "put the top camera's foreground over a photograph drawn from `plates`")
    plates: str | None = key(None, "folder of clean-plate PNGs, optionally with plates.json; none ships")


@dataclass
class SimConfig:
    _target_: str = "vla_rl.sim.env.BoatToDisk"
    protocol: str = key("sim100b", "sim100b or sim100, then what differs: -30hz|-35ms, -spawn2, -h15|-h10")
    image_px: int = key(112, "camera width and height in pixels", at_least=1)
    chunk_ticks: int = key(30, "ticks of one predicted chunk (30 ticks are one second)", at_least=1)
    max_ticks: int = key(900, "episode length in ticks", at_least=1)
    terminate_on: str = key(
        "success_strict",
        "success_documented, success_strict or never",
        choices=("success_documented", "success_strict", "never"),
    )
    stop_hopeless: bool = key(False, "end an episode whose boat lies on its side, is over 25 cm away or off the table")
    look: LookConfig = field(default_factory=LookConfig)


@dataclass
class SerialPoolConfig:
    _target_: str = "vla_rl.rollout.pool.SerialPool"


@dataclass
class ProcessPoolConfig:
    _target_: str = "vla_rl.rollout.pool.ProcessPool"
    workers: int = key(2, "environment processes", at_least=1)
    groups: int = key(
        2, "groups of slots that take turns: one is predicted while another moves; 1 is lockstep", at_least=1
    )
    timeout_s: float = key(120.0, "a worker silent for longer is replaced and its episodes redone", above=0)


@dataclass
class RewardV1Config:
    _target_: str = "vla_rl.rl.reward.RewardV1"
    success_bonus: float = key(10.0, "cm granted for success", at_least=0)
    tip_penalty: float = key(2.0, "cm taken if the boat ends tipped", at_least=0)
    strike_penalty: float = key(5.0, "cm taken if the reset touched the boat", at_least=0)
    progress_floor_cm: float | None = key(None, "lower bound of the progress term; null is the documented reward")


@dataclass
class RewardV2Config:
    _target_: str = "vla_rl.rl.reward.RewardV2"
    success_bonus: float = key(10.0, "cm granted for success", at_least=0)
    tip_penalty: float = key(2.0, "cm taken if the boat ends tipped", at_least=0)
    strike_penalty: float = key(5.0, "cm taken if the reset touched the boat", at_least=0)
    shove_penalty: float = key(0.5, "cm taken for each cm that the boat moves without being pinched", at_least=0)


@dataclass
class TextStackConfig:
    _target_: str = "vla_rl.rl.surfaces.TextStack"


@dataclass
class PatchOnlyConfig:
    _target_: str = "vla_rl.rl.surfaces.PatchOnly"


@dataclass
class FullSurfaceConfig:
    _target_: str = "vla_rl.rl.surfaces.Full"


@dataclass
class NoLoggerConfig:
    _target_: str = "vla_rl.report.mirror.NoMirror"


@dataclass
class WandbLoggerConfig:
    _target_: str = "vla_rl.report.mirror.WandbMirror"
    project: str = key("vla_rl", "W&B project")
    mode: str = key("offline", "online, offline or disabled", choices=("online", "offline", "disabled"))


# --------------------------------------------------------------------------------------------- demonstrations and SFT
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
        4, "ticks between the starts of training windows of an episode (1: every tick); the phase is drawn", at_least=1
    )
    episodes: int | None = key(None, "train on this many episodes, from the first one on (null: all)", at_least=1)
    chunk_ticks: int = key(30, "ticks of a target chunk (30 ticks are one second)", at_least=1)
    base: str | None = key(
        None, "start from this policy checkpoint, or give this model action tokens (null: a fresh twin)"
    )
    base_revision: str | None = key(None, "commit that a hub id in sft.base is pinned to")
    base_norm_tag: str | None = key(None, "normalisation tag of sft.base, where it has several")
    base_fast_tokenizer: str | None = key(None, "directory of the FAST artifact of sft.base, where it is kept apart")
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
    allow_holes: bool = key(
        False, "also learn from chunks that the action codec of sft.base cannot write whole: their labels are short"
    )
    save_at: list[int] = key([], "steps at which an extra policy directory is written")
    log_every: int = key(50, "steps between log rows", at_least=1)
    checkpoint_every_s: float = key(120.0, "seconds between resume points", above=0)
    compile: bool = key(False, "compile the forward pass; pays on a GPU from some hundred steps on")


# --------------------------------------------------------------------------------------------- primary configurations
@dataclass
class TrainRoot:
    """`vla-rl train`"""

    run: RunConfig = field(default_factory=RunConfig)
    policy: Any = MISSING
    surface: Any = MISSING
    sampler: Any = MISSING
    sim: Any = MISSING
    pool: Any = MISSING
    geometry: GeometryConfig = field(default_factory=GeometryConfig)
    reward: Any = MISSING
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: Any = MISSING
    plugins: list[str] = key([], "packages besides vla_rl from which components may be built")


@dataclass
class EvalRoot:
    """`vla-rl eval`"""

    run: EvalJobConfig = field(default_factory=EvalJobConfig)
    policy: Any = MISSING
    sampler: Any = MISSING
    sim: Any = MISSING
    pool: Any = MISSING
    eval: EvalConfig = field(default_factory=EvalConfig)
    plugins: list[str] = key([], "packages besides vla_rl from which components may be built")


@dataclass
class DemosRoot:
    """`vla-rl demos`"""

    run: DemosJobConfig = field(default_factory=DemosJobConfig)
    sim: Any = MISSING
    demos: DemosConfig = field(default_factory=DemosConfig)


@dataclass
class SftRoot:
    """`vla-rl sft`"""

    run: SftJobConfig = field(default_factory=SftJobConfig)
    twin: TwinConfig = field(default_factory=TwinConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    task: str | None = key(None, "instruction the policy learns (default: the dataset's, if it has only one)")


ROOTS: dict[str, type] = {"config": TrainRoot, "eval": EvalRoot, "demos": DemosRoot, "sft": SftRoot}

# (group, schema name) -> dataclass; an option `conf/<group>/<option>.yaml` names its schema in its defaults list.
SCHEMAS: dict[tuple[str, str], type] = {
    ("policy", "schema_policy"): PolicyConfig,
    ("policy", "schema_expert"): ExpertConfig,
    ("surface", "schema_text_stack"): TextStackConfig,
    ("surface", "schema_patch_only"): PatchOnlyConfig,
    ("surface", "schema_full"): FullSurfaceConfig,
    ("sampler", "schema_grammar"): SamplerConfig,
    ("sim", "schema_sim"): SimConfig,
    ("pool", "schema_serial"): SerialPoolConfig,
    ("pool", "schema_processes"): ProcessPoolConfig,
    ("reward", "schema_v1"): RewardV1Config,
    ("reward", "schema_v2"): RewardV2Config,
    ("logger", "schema_none"): NoLoggerConfig,
    ("logger", "schema_wandb"): WandbLoggerConfig,
}
