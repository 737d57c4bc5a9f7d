"""Keys of the sections that say how long, on what and by which constants a command works."""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.config.schema.guards import PARITY_INTERACTED, PARITY_SUCCESSES
from vla_rl.config.schema.key import key


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
class EvalJobConfig(DemosJobConfig):
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
    train_seed_base: int = key(
        200000, "first training seed; step k uses base + (k - 1) * seeds * (1 + refill) and the following", at_least=0
    )
    refill: int = key(
        0, "at most this many further waves a step, of fresh seeds in place of groups that were dropped", at_least=0
    )
    advantage: str = key(
        "zscore",
        "zscore: over the group's spread; leave_one_out: minus the others' mean; mean_only: minus the mean; "
        "batch_scaled: over the wave's spread",
        choices=("zscore", "leave_one_out", "mean_only", "batch_scaled"),
    )
    credit: str = key(
        "episode",
        "episode: one advantage for all of it; to_go: every replan answers for the reward from its own first tick on",
        choices=("episode", "to_go"),
    )
    min_group_std_cm: float = key(0.05, "groups whose rewards spread less (population std, cm) are dropped", at_least=0)
    min_success_rate: float | None = key(
        None, "groups whose share of successes is not above this are dropped (null: none are)", at_least=0, at_most=1
    )
    max_success_rate: float | None = key(
        None, "groups whose share of successes is not below this are dropped (null: none are)", at_least=0, at_most=1
    )
    advantage_clip: float | None = key(None, "advantages are clipped to +-this; null leaves them", above=0)
    shuffle_advantages: bool = key(
        False, "control: deal the advantages of the kept episodes to one another, so that they mean nothing"
    )


@dataclass
class ExperienceConfig:
    demos: str | None = key(
        None,
        "demonstrations (`vla-rl demos`) that updates learn from, advantage 1 on every row (null: waves are played)",
    )
    rows: int | None = key(None, "rows of the demonstrations an update takes; needed with experience.demos", at_least=1)
    recipe_sha256: str | None = key(
        None, "digest that their recipe must have, as `vla-rl demos` prints it (null: any recipe)"
    )


@dataclass
class LossConfig:
    clip_low: float = key(0.8, "lower bound of the token ratio", above=0, at_most=1)
    clip_high: float = key(1.28, "upper bound of the token ratio (clip-higher)", at_least=1)
    ratio: str = key(
        "token",
        "token: each token's own ratio; sequence: the geometric mean over its chunk",
        choices=("token", "sequence"),
    )
    dual_clip: float | None = key(
        None, "with a negative advantage A a token contributes at least this times A; null: no bound", above=1
    )
    weighting: str = key(
        "token",
        "token: every token of the wave counts the same; episode: every episode does; constant: the sum over "
        "episodes x episode_tokens",
        choices=("token", "episode", "constant"),
    )
    episode_tokens: int = key(700, "what stands for an episode's tokens under constant weighting", at_least=1)
    old_logp: str = key(
        "rescored",
        "old log-probabilities: rescored (the trainer's own forward pass) or recorded (the sampler's)",
        choices=("rescored", "recorded"),
    )
    epochs: int = key(1, "gradient passes over a wave, with an optimiser step each", at_least=1)
    kl_beta: float = key(0.0, "weight of the KL estimate against the policy at step 0", at_least=0)
    kl_estimator: str = key("k3", "k1, k2 or k3 (Schulman, 2020)", choices=("k1", "k2", "k3"))
    kl_in: str = key(
        "loss",
        "loss: a term a token, in nats; reward: kl_beta cm are taken for each nat of an episode's estimate",
        choices=("loss", "reward"),
    )
    entropy_bonus: float = key(0.0, "weight of the tokens' mean entropy", at_least=0)
    kl_rows: int = key(32, "rows on which the distance to step 0 is measured after an update; 0: never", at_least=0)
    trust_region: float | None = key(
        None,
        "an update that moves those rows by more (k3, nats a token) is undone; null: never",
        above=0,
        unit="nats a token",
    )
    max_first_gap: float = key(
        0.06,
        "largest |trainer - sampler| log-probability of a token before the first update, nats",
        above=0,
        unit="nats",
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
    decay_after: int | None = key(
        None, "after N updates the learning rate falls as N / update; null: it stays", at_least=1, unit="updates"
    )
    microbatch_rows: int = key(
        1, "most rows of a forward and backward pass (changes memory and speed, not the gradient)", at_least=1
    )
    microbatch_tokens: int | None = key(
        None, "most tokens of such a pass, prompts and padding included; a longer row goes alone", at_least=1
    )
    precision: str = key(
        "float32",
        "of the text layers' passes: float32, or bfloat16 (mixed: weights, sums of layers and the head stay float32)",
        choices=("float32", "bfloat16"),
    )
    recompute: bool = key(
        False, "compute what the text layers gave again in the backward pass instead of keeping it: memory for time"
    )
    moments: str = key(
        "device",
        "where AdamW's moments lie: on the policy's device, or in the host's memory, whence a tensor's at a time visit "
        "the device in a step: the same numbers for less memory there",
        choices=("device", "host"),
    )


@dataclass
class EvalConfig:
    seeds: str = key("200-219", "held-out environment seeds, e.g. 0-99 or 300,301")
    temperature: float = key(0.0, "0 is greedy decoding", at_least=0)
    slots: int = key(
        32, "episodes that run side by side, in evaluations and in the waves of a training run", at_least=1
    )
    frames: str = key(
        "own",
        "what the policy is shown: its own pictures, those of another episode (its blind floor), black ones, the first "
        "pair ever seen (only the state tells then), or its own with one camera black",
        choices=("own", "foreign", "black", "still", "top_black", "wrist_black"),
    )
    traces: bool = key(False, "also write traces.jsonl: distance and grip of every episode, tick by tick")


@dataclass
class MonitorConfig(EvalConfig):
    every: int | None = key(
        None,
        "updates between the evaluations of a training run; null: only before the first and after the last",
        at_least=1,
        unit="updates",
    )
    at_steps: list[int] = key([], "further updates after which to evaluate, e.g. [1,5]")


@dataclass
class ProbeConfig:
    seeds: str = key("500-514", "spawn seeds of the probe, e.g. 500-514 or 500,501")
    draws: int = key(8, "sampled episodes per seed and temperature", at_least=2)
    temperatures: list[float] = key([1.0, 1.6], "sampling temperatures to choose among, each above 0")
    slots: int = key(32, "episodes that run side by side", at_least=1)
    min_group_std_cm: float = key(
        0.05, "a group whose scores spread less (population std, cm) is degenerate", at_least=0
    )
    spread_bar_cm: float = key(0.25, "signal bar: the median group spread must be at least this, cm", at_least=0)
    cost_floor_cm: float = key(
        -1.0, "a temperature is refused if the interval of its cost against greedy lies below this, cm", at_most=0
    )
    max_nats: float | None = key(
        None,
        "a temperature is refused if its draws have more nats a token than this (null: the documented rule)",
        above=0,
        unit="nats a token",
    )


@dataclass
class ParityConfig:
    max_success_difference: int = key(PARITY_SUCCESSES, "two paths may differ by this many successes", at_least=0)
    max_interacted_difference: float = key(
        PARITY_INTERACTED,
        "and by this much in the share of episodes that interact with the boat",
        at_least=0,
        at_most=1,
    )
    dir: str | None = key(
        None, "directory for both evaluations where they are played (default: outputs/parity/<run id>)"
    )


@dataclass
class DistributedConfig:
    update: str = key(
        "none",
        "who computes an update: none (the process of the run) or fsdp2 (all processes that torchrun has started, with "
        "a share of the weights each)",
        choices=("none", "fsdp2"),
    )
    timeout_s: float = key(
        600.0, "seconds that a process waits for the others inside an update before it gives up", above=0
    )


@dataclass
class CheckpointConfig:
    every: int = key(1, "updates between checkpoints", at_least=1, unit="updates")
    keep: int = key(2, "newest checkpoints that are kept", at_least=1)
    keep_rows: bool = key(False, "keep the replay rows of a wave after its update has been checkpointed")
