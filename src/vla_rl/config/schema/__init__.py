"""Typed configuration: every key, its default, its unit and what it is for.

In: nothing. Out: dataclasses that type the Hydra composition, and the tables that register them. This package is the
only place with defaults. Options under `conf/` name a schema and the values in which they differ from it. A component
(a node with `_target_`) hands all of its keys to the constructor that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from vla_rl.config.schema.components import (
    ExpertConfig,
    FullSurfaceConfig,
    GrpoLossConfig,
    HeldOutConfig,
    LeRobotConfig,
    LookConfig,
    LoraConfig,
    NoLoggerConfig,
    PatchOnlyConfig,
    PolicyConfig,
    ProcessPoolConfig,
    RayPoolConfig,
    RewardV1Config,
    RewardV2Config,
    SamplerConfig,
    ScratchPolicyConfig,
    SerialPoolConfig,
    SimConfig,
    TextStackConfig,
    WandbLoggerConfig,
)
from vla_rl.config.schema.guards import BudgetConfig, GatesConfig, TripwiresConfig
from vla_rl.config.schema.key import key
from vla_rl.config.schema.learning import (
    DemosConfig,
    SftConfig,
    TwinConfig,
)
from vla_rl.config.schema.runs import (
    CheckpointConfig,
    DemosJobConfig,
    DistributedConfig,
    EvalConfig,
    EvalJobConfig,
    ExperienceConfig,
    GeometryConfig,
    LossConfig,
    MonitorConfig,
    OptimConfig,
    ParityConfig,
    ProbeConfig,
    RunConfig,
    SftJobConfig,
)

__all__ = [
    "BudgetConfig",
    "CheckpointConfig",
    "DemosConfig",
    "DemosJobConfig",
    "DemosRoot",
    "DistributedConfig",
    "EvalConfig",
    "EvalJobConfig",
    "EvalRoot",
    "ExperienceConfig",
    "ExpertConfig",
    "ScratchPolicyConfig",
    "FullSurfaceConfig",
    "GatesConfig",
    "GeometryConfig",
    "GrpoLossConfig",
    "HeldOutConfig",
    "LeRobotConfig",
    "LookConfig",
    "LoraConfig",
    "LossConfig",
    "MonitorConfig",
    "NoLoggerConfig",
    "OptimConfig",
    "ParityConfig",
    "ParityRoot",
    "PatchOnlyConfig",
    "PlayingRoot",
    "PolicyConfig",
    "ProbeConfig",
    "ProbeRoot",
    "ProcessPoolConfig",
    "ROOTS",
    "RayPoolConfig",
    "RewardV1Config",
    "RewardV2Config",
    "RunConfig",
    "SCHEMAS",
    "SamplerConfig",
    "SerialPoolConfig",
    "SftConfig",
    "SftJobConfig",
    "SftRoot",
    "SimConfig",
    "TextStackConfig",
    "TrainRoot",
    "TripwiresConfig",
    "TwinConfig",
    "WandbLoggerConfig",
    "key",
]


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
    experience: ExperienceConfig = field(default_factory=ExperienceConfig)
    reward: Any = MISSING
    loss: LossConfig = field(default_factory=LossConfig)
    token_loss: Any = MISSING
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: MonitorConfig = field(default_factory=MonitorConfig)
    evaluator: Any = MISSING
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tripwires: TripwiresConfig = field(default_factory=TripwiresConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    logger: Any = MISSING
    plugins: list[str] = key([], "packages besides vla_rl from which components may be built")


@dataclass
class PlayingRoot:
    """What a command that plays episodes of a policy has."""

    run: EvalJobConfig = field(default_factory=EvalJobConfig)
    policy: Any = MISSING
    sampler: Any = MISSING
    sim: Any = MISSING
    pool: Any = MISSING
    plugins: list[str] = key([], "packages besides vla_rl from which components may be built")


@dataclass
class EvalRoot(PlayingRoot):
    """`vla-rl eval`"""

    eval: EvalConfig = field(default_factory=EvalConfig)


@dataclass
class ProbeRoot(PlayingRoot):
    """`vla-rl probe`"""

    reward: Any = MISSING
    probe: ProbeConfig = field(default_factory=ProbeConfig)


@dataclass
class ParityRoot:
    """`vla-rl parity`; what it plays is configured as for `vla-rl eval`"""

    parity: ParityConfig = field(default_factory=ParityConfig)


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
    sampler: Any = MISSING
    sim: Any = MISSING
    pool: Any = MISSING
    eval: EvalConfig = field(default_factory=EvalConfig)
    plugins: list[str] = key([], "packages besides vla_rl from which components may be built")
    task: str | None = key(None, "instruction the policy learns (default: the dataset's, if it has only one)")


ROOTS: dict[str, type] = {
    "config": TrainRoot, "eval": EvalRoot, "probe": ProbeRoot, "parity": ParityRoot, "demos": DemosRoot,
    "sft": SftRoot,
}  # fmt: skip

# (group, schema name) -> dataclass; an option `conf/<group>/<option>.yaml` names its schema in its defaults list.
SCHEMAS: dict[tuple[str, str], type] = {
    ("policy", "schema_policy"): PolicyConfig,
    ("policy", "schema_expert"): ExpertConfig,
    ("policy", "schema_scratch"): ScratchPolicyConfig,
    ("policy", "schema_lerobot"): LeRobotConfig,
    ("surface", "schema_text_stack"): TextStackConfig,
    ("surface", "schema_patch_only"): PatchOnlyConfig,
    ("surface", "schema_full"): FullSurfaceConfig,
    ("surface", "schema_lora"): LoraConfig,
    ("sampler", "schema_grammar"): SamplerConfig,
    ("sim", "schema_sim"): SimConfig,
    ("pool", "schema_serial"): SerialPoolConfig,
    ("pool", "schema_processes"): ProcessPoolConfig,
    ("pool", "schema_ray"): RayPoolConfig,
    ("reward", "schema_v1"): RewardV1Config,
    ("reward", "schema_v2"): RewardV2Config,
    ("token_loss", "schema_grpo"): GrpoLossConfig,
    ("evaluator", "schema_held_out"): HeldOutConfig,
    ("logger", "schema_none"): NoLoggerConfig,
    ("logger", "schema_wandb"): WandbLoggerConfig,
}
