"""A sampler, a pool, a reward, a loss and an evaluator for `vla-rl train`, each of which leaves a mark in the run."""

import torch

from vla_rl.policy.sampler import GrammarSampler
from vla_rl.rl.loss import LossOutputs, RatioStats
from vla_rl.rl.summary import Evaluation
from vla_rl.rollout.pool import SerialPool


class ShiftedSampler(GrammarSampler):
    """Samples as under another run seed."""

    def __init__(self, *, policy, run_seed, batch_rows, shift):
        super().__init__(policy=policy, run_seed=run_seed + shift, batch_rows=batch_rows)


class NamedPool(SerialPool):
    """Says its name among the facts of the scene."""

    def __init__(self, *, env_spec, plugins, name):
        super().__init__(env_spec=env_spec, plugins=plugins)
        self.name = name

    def describe(self):
        return {**super().describe(), "pool": self.name}


class Alternating:
    """Pays every second episode."""

    def __init__(self, *, pay):
        self.pay, self.priced = pay, 0

    def terms(self, metrics):
        self.priced += 1
        pay = self.pay * (self.priced % 2)
        return {"turn": pay, "total": pay}


class Reinforce:
    """Advantage times log-probability, without a ratio."""

    def __call__(self, inputs, objective):
        weighted = inputs.advantage_R * inputs.weight_R
        gain = (torch.where(inputs.mask_RT, inputs.new_logp_RT, 0.0) * weighted[:, None]).sum()
        return LossOutputs(-gain / inputs.normaliser, RatioStats())


class Digest:
    """Evaluates nothing but which weights these are."""

    def __init__(self, *, policy):
        self.policy = policy

    def __call__(self, step):
        return Evaluation({"digest": self.policy.digest()}, ())
