"""Keys of the components: each node names its class in `_target_`, whose constructor takes all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from vla_rl.config.schema.key import key


@dataclass
class PolicyConfig:
    _target_: str = "vla_rl.policy.policy.load_policy"
    checkpoint: str = key(MISSING, "bundled:<name>, a checkpoint directory, or a hub id with its revision")
    revision: str | None = key(None, "commit (40 hex digits) that a hub id is pinned to")
    dtype: str = key("float32", "number format of the network", choices=("float32", "bfloat16"))
    tf32: bool = key(False, "float32 matrix products of a GPU in TF32: several times as fast, 10 bits of mantissa")
    norm_tag: str | None = key(None, "normalisation tag, where the checkpoint has several (null: its only one)")
    joint_frame: str | None = key(
        None, "frame of the tables, if they do not tell: rig (v3.0) or v21", choices=("rig", "v21")
    )
    fast_tokenizer: str | None = key(None, "directory or hub id of the FAST artifact (null: the checkpoint's own)")
    fast_revision: str | None = key(None, "commit that a hub id of the FAST artifact is pinned to")
    serve_head: str = key(
        "ar",
        "which head acts: ar (action tokens) or flow (the action expert of a checkpoint that has one; evaluation only)",
        choices=("ar", "flow"),
    )
    task: str = key("Pick up the toy boat and place it on the wooden disk.", "instruction given to the policy")
    grammar: str = key(
        "reachable",
        "legal action bins: reachable (those the codec's encoder can emit) or documented (every one that decodes)",
        choices=("reachable", "documented"),
    )
    allow_scene_mismatch: bool = key(
        False, "let the policy act in another scene than the one it was trained in; every result then says so"
    )
    allow_stale_head: bool = key(
        False, "let a head act although the trunk has moved since it was trained; the record then says so"
    )


@dataclass
class ScratchPolicyConfig:
    _target_: str = "vla_rl.policy.scratch.scratch_policy"
    tables: str = key("bundled:tiny_full", "checkpoint whose codec and normalisation it has; none of its weights")
    seed: int = key(0, "of the random weights")
    dtype: str = key("float32", "number format of the network", choices=("float32", "bfloat16"))
    tf32: bool = key(False, "float32 matrix products of a GPU in TF32: several times as fast, 10 bits of mantissa")
    task: str = key("Pick up the toy boat and place it on the wooden disk.", "instruction given to the policy")
    grammar: str = key(
        "reachable",
        "legal action bins: reachable (those the codec's encoder can emit) or documented (every one that decodes)",
        choices=("reachable", "documented"),
    )
    image_px: int = key(378, "side of the square picture that it reads; others are resized", at_least=1)
    patch_px: int = key(14, "side of a vision patch; 2x2 patches become one image token", at_least=1)
    vision_width: int = key(1152, "width of the vision transformer", at_least=1)
    vision_head: int = key(72, "width of one of its attention heads", at_least=1)
    vision_layers: int = key(25, "layers of the vision transformer", at_least=1)
    vision_read: list[int] = key([24, 18], "layers whose outputs the adapter pools, counted from 0")
    vision_mlp: int = key(4304, "hidden width of its feed-forward layers", at_least=1)
    adapter_mlp: int = key(9728, "hidden width of the projector from vision to text", at_least=1)
    text_width: int = key(2560, "width of the decoder", at_least=1)
    text_layers: int = key(36, "layers of the decoder", at_least=1)
    text_heads: int = key(32, "attention heads of the decoder", at_least=1)
    text_kv_heads: int = key(8, "key/value heads of the decoder", at_least=1)
    text_head: int = key(128, "width of an attention head of the decoder", at_least=1)
    text_mlp: int = key(9728, "hidden width of its feed-forward layers", at_least=1)
    base_size: int = key(155_648, "rows of embedding and head, at least", at_least=1)
    rope_theta: float = key(5.0e6, "base of the rotary positions", above=0)


@dataclass
class LeRobotConfig:
    _target_: str = "vla_rl.policy.lerobot.load_lerobot_policy"
    checkpoint: str = key(MISSING, "directory that LeRobot's save_pretrained wrote, with both processors")
    top: str | None = key("observation.images.top", "its input that gets the top camera (null: it does not look there)")
    wrist: str | None = key("observation.images.wrist", "its input that gets the wrist camera (null: likewise)")
    joint_frame: str | None = key(
        None, "frame of its degrees, if its statistics do not tell: rig (v3.0) or v21", choices=("rig", "v21")
    )
    fps: int = key(30, "rate that its actions are for, Hz; the world's is 30", at_least=1, unit="Hz")
    n_action_steps: int | None = key(
        None, "actions executed before it looks again (null: the checkpoint's); must be the protocol's", at_least=1
    )
    task: str = key("Pick up the toy boat and place it on the wooden disk.", "instruction given to the policy")


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
    dtype: str | None = key(
        None,
        "number format to sample in (null: the policy's own); the trainer scores rows anew",
        choices=("float32", "bfloat16"),
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
    noise_counts: float = key(
        0.0, "sigma of the sensor noise, counts of 255", at_least=0, at_most=100, unit="counts of 255"
    )
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
class RayPoolConfig:
    _target_: str = "vla_rl.rollout.ray_pool.RayPool"
    workers: int = key(2, "actors that play environments", at_least=1)
    groups: int = key(
        2, "groups of slots that take turns: one is predicted while another moves; 1 is lockstep", at_least=1
    )
    timeout_s: float = key(120.0, "an actor silent for longer is replaced and its episodes redone", above=0)
    address: str | None = key(
        None, "host:port of the head of the cluster to play on (null: one of the run's own, on this machine)"
    )
    cpus: float = key(1.0, "CPUs that Ray sets aside for an actor", above=0)
    resources: dict[str, float] = key({}, "other resources of its node that an actor takes, by name, e.g. {arm: 1}")
    placement: str = key("spread", "spread over the nodes, or pack one after the other", choices=("spread", "pack"))


@dataclass
class RewardV1Config:
    _target_: str = "vla_rl.rl.reward.RewardV1"
    success_bonus: float = key(10.0, "cm granted for success", at_least=0, unit="cm")
    tip_penalty: float = key(2.0, "cm taken if the boat ends tipped", at_least=0, unit="cm")
    strike_penalty: float = key(5.0, "cm taken if the reset touched the boat", at_least=0, unit="cm")
    progress_floor_cm: float | None = key(None, "lower bound of the progress term; null is the documented reward")


@dataclass
class RewardV2Config:
    _target_: str = "vla_rl.rl.reward.RewardV2"
    success_bonus: float = key(10.0, "cm granted for success", at_least=0, unit="cm")
    tip_penalty: float = key(2.0, "cm taken if the boat ends tipped", at_least=0, unit="cm")
    strike_penalty: float = key(5.0, "cm taken if the reset touched the boat", at_least=0, unit="cm")
    shove_penalty: float = key(
        0.5, "cm taken for each cm that the boat moves without being pinched", at_least=0, unit="cm per cm"
    )


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
class LoraConfig:
    _target_: str = "vla_rl.rl.surfaces.Lora"
    rank: int = key(16, "rank of the pair beside every projection", at_least=1)
    alpha: float = key(32.0, "the pair's product counts alpha / rank times", above=0)
    targets: list[str] = key(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "projections of the text stack that get a pair, by the last part of their names",
    )


@dataclass
class GrpoLossConfig:
    _target_: str = "vla_rl.rl.loss.GrpoLoss"


@dataclass
class HeldOutConfig:
    _target_: str = "vla_rl.evals.monitor.HeldOut"


@dataclass
class NoLoggerConfig:
    _target_: str = "vla_rl.report.mirror.NoMirror"


@dataclass
class WandbLoggerConfig:
    _target_: str = "vla_rl.report.mirror.WandbMirror"
    project: str = key("vla_rl", "W&B project")
    mode: str = key("offline", "online, offline or disabled", choices=("online", "offline", "disabled"))
