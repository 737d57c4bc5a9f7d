"""What a rollout produces: one `Row` per replan and one `Episode` per (seed, draw).

Plain frozen records without torch or mujoco types, so that they can be stored, replayed and judged anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to run.

    Attributes:
        seed: environment seed (decides the initial state).
        draw: index of this episode among those of its seed (decides the sampled tokens).
    """

    seed: int
    draw: int = 0

    @property
    def episode_id(self) -> str:
        return f"seed{self.seed:06d}_draw{self.draw:02d}"


@dataclass(frozen=True)
class Row:
    """One replan: what the policy saw, what it sampled and how likely that was.

    Attributes:
        spec: the episode this row belongs to.
        replan: 0-based index of the replan inside the episode.
        frames: uint8 [camera, height, width, 3], lossless, in the order of `vla_rl.policy.prompt.CAMERAS`.
        state_deg: float64 [6], joint degrees as observed (before normalisation).
        bins: int16 [token], sampled action-token bins (block-relative).
        logp: float32 [token], log-probability under the grammar-masked softmax at the sampling temperature.
        legal_packed: uint8 [token, ceil(vocabulary / 8)], `numpy.packbits` of the legal-token mask at each token.
        rng_key: (run seed, draw, environment seed, replan).
        policy_digest: digest of the policy that sampled it.
    """

    spec: EpisodeSpec
    replan: int
    frames: np.ndarray
    state_deg: np.ndarray
    bins: np.ndarray
    logp: np.ndarray
    legal_packed: np.ndarray
    rng_key: tuple[int, int, int, int]
    policy_digest: str


@dataclass(frozen=True)
class Trace:
    """What an episode's reward is spread over its replans by; index 0 of a series is the state after reset.

    Attributes:
        starts: the 0-based first tick of each replan.
        distance_cm: boat to disk, one a tick and one more.
        grip: which jaws touched the boat (`vla_rl.sim.funnel`), or None if the simulator does not know.
    """

    starts: list[int]
    distance_cm: list[float]
    grip: list[int] | None


@dataclass(frozen=True)
class Episode:
    """One finished episode.

    Attributes:
        spec: seed and draw.
        metrics: flat JSON-able scalars from `vla_rl.sim.metrics` (centimetres, ticks, booleans).
        replans: number of predicts.
        tokens: action tokens sampled in the whole episode.
        wall_s: wall time of the episode's own environment work.
        masked_violations, wider_bins, zero_fallbacks, predict_s: sums over its predicts, see
            `vla_rl.policy.sampler.DecodeCounts`.
        nll: sum of -log-probability over its tokens, nats; None where nothing was sampled or it was not recorded.
        trace: None if rows are not kept or the simulator has none.
    """

    spec: EpisodeSpec
    metrics: dict[str, Any]
    replans: int
    tokens: int
    wall_s: float
    masked_violations: int = field(default=0, repr=False)
    wider_bins: int = field(default=0, repr=False)
    zero_fallbacks: int = field(default=0, repr=False)
    predict_s: float = field(default=0.0, repr=False, compare=False)
    nll: float | None = field(default=None, repr=False)
    trace: Trace | None = field(default=None, repr=False)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """The inverse of `dataclasses.asdict`.

        Raises:
            ValueError: a field is missing or unknown; it is named.
        """
        differing = {each.name for each in fields(cls)} ^ record.keys()
        if differing:
            raise ValueError(f"no record of an episode: {', '.join(sorted(differing))} missing or unknown")
        trace = record["trace"] and Trace(**record["trace"])
        return cls(**{**record, "spec": EpisodeSpec(**record["spec"]), "trace": trace})


def facts(episode: Episode) -> dict[str, Any]:
    """What every row about an episode holds, whoever writes it: all metrics, and what was sampled; no times."""
    return {
        **episode.metrics,
        "replans": episode.replans,
        "tokens": episode.tokens,
        "nll": episode.nll,
        "masked_violations": episode.masked_violations,
        "wider_bins": episode.wider_bins,
        "zero_fallbacks": episode.zero_fallbacks,
    }


def surprise(logp: np.ndarray) -> float:
    """Sum of -log-probability over the tokens of a predict, nats; `logp` is float32 [token]."""
    return -float(logp.sum(dtype=np.float64))


def mean_nll(episodes: Sequence[Episode]) -> float | None:
    """Mean -log-probability of a token over some episodes, nats; None if an episode does not know its own.

    At a temperature above 0 the tokens were drawn from the very distribution that scores them (softmax of logits / T
    under the mask), so this is an unbiased estimate of that distribution's mean entropy along the policy's own
    episodes. Greedy tokens are scored at temperature 1: there it is the surprise of the most likely tokens.
    """
    sums, tokens = [e.nll for e in episodes], sum(e.tokens for e in episodes)
    known = [value for value in sums if value is not None]
    return sum(known) / tokens if tokens and len(known) == len(sums) else None


def decode_counts(episodes: Sequence[Episode]) -> dict[str, int | float | None]:
    """How the predicts of some episodes were decoded: the counts of each, summed, and the mean latency of a predict."""
    replans = sum(e.replans for e in episodes)
    return {
        "masked_violations": sum(e.masked_violations for e in episodes),
        "wider_bins": sum(e.wider_bins for e in episodes),
        "zero_fallbacks": sum(e.zero_fallbacks for e in episodes),
        "predict_latency_s": sum(e.predict_s for e in episodes) / replans if replans else None,
    }
