"""Wave integrity: are stored rows what the policy that they name would have sampled.

In: the stored episodes of one wave, the policy that sampled them, temperature and limits of a forward pass. Out: one
JSON-able report: legal masks recomputed from the tokens alone and compared bit for bit, keys and counts, and how far
the log-probabilities of a second scoring lie from the stored ones. Everything is looked at and everything that differs
is named; nothing is raised. Left out: which policy that is and where it comes from (`cli.replay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_rl.errors import ConfigError
from vla_rl.policy.grammar import Grammar
from vla_rl.rl.drift import log_probabilities
from vla_rl.rl.lessons import BatchLimits
from vla_rl.rollout.records import Episode, Row

Stored = Sequence[tuple[Episode, tuple[Row, ...]]]


def check_masks(stored: Stored, grammar: Grammar) -> dict[str, Any]:
    """Recompute the legal mask of every row.

    Returns:
        `rows`, `tokens`, and `mismatched`: a finding a row with `episode`, `replan`, `what`, and, where masks can be
        compared, the first differing `token`, its `bin`, and whether that bin is legal (`stored`, `recomputed`).
    """
    rows = [row for _, rows in stored for row in rows]
    findings = [finding for row in rows if (finding := _mask_finding(row, grammar))]
    return {"rows": len(rows), "tokens": sum(len(row.bins) for row in rows), "mismatched": findings}


def check_records(stored: Stored, run_seed: int) -> list[dict[str, Any]]:
    """Rows and episodes that contradict themselves: counts, random keys, numbers that are none."""
    found = []
    for episode, rows in stored:
        counts = {"replans": (episode.replans, len(rows)), "tokens": (episode.tokens, sum(len(r.bins) for r in rows))}
        for name, (told, there) in counts.items():
            if told != there:
                found.append(_about(episode, None, f"the episode counts {told} {name}, its rows {there}"))
        for row in rows:
            key = (run_seed, row.spec.draw, row.spec.seed, row.replan)
            if row.rng_key != key:
                found.append(_about(episode, row.replan, f"its random key is {row.rng_key}, not {key}"))
            if not np.isfinite(row.logp).all():
                found.append(_about(episode, row.replan, "a log-probability is not finite"))
    return found


def rescore(policy: Any, rows: Sequence[Row], *, temperature: float, limits: BatchLimits) -> dict[str, Any]:
    """Score rows again and compare with what the sampler stored.

    Args:
        policy: the one that sampled them.
        rows: with whole streams and finite log-probabilities.

    Returns:
        `rows`, `tokens`, `equal` (tokens that agree in every bit), `max`, `p99` and `mean` of |difference| in nats, and
        `first` and `worst`: the first token that differs at all, by episode, replan and token, and the one that differs
        most, each with `episode`, `replan`, `token`, `bin`, `stored`, `rescored`; None where nothing differs. The
        numbers are None without rows.
    """
    rows = sorted(rows, key=lambda row: (row.spec.seed, row.spec.draw, row.replan))
    live = [x.numpy() for x in log_probabilities(policy, rows, temperature=temperature, limits=limits)]
    gaps = [np.abs(a.astype(np.float64) - row.logp) for a, row in zip(live, rows, strict=True)]
    gap_N = np.concatenate([np.zeros(0), *gaps])
    ends = np.cumsum([len(gap) for gap in gaps])

    def token(at: int) -> dict[str, Any]:
        index = int(np.searchsorted(ends, at, side="right"))
        inside = at - (int(ends[index - 1]) if index else 0)
        row, values = rows[index], (float(rows[index].logp[inside]), float(live[index][inside]))
        place = {"episode": row.spec.episode_id, "replan": row.replan, "token": inside, "bin": int(row.bins[inside])}
        return {**place, "stored": values[0], "rescored": values[1]}

    differing = np.flatnonzero(gap_N)
    return {
        "rows": len(rows),
        "tokens": len(gap_N),
        "equal": len(gap_N) - len(differing),
        "max": float(gap_N.max()) if len(gap_N) else None,
        "p99": float(np.percentile(gap_N, 99)) if len(gap_N) else None,
        "mean": float(gap_N.mean()) if len(gap_N) else None,
        "first": token(int(differing[0])) if len(differing) else None,
        "worst": token(int(gap_N.argmax())) if len(differing) else None,
    }


def scorable(stored: Stored, digest: str, findings: Sequence[dict[str, Any]]) -> tuple[list[Row], list[str]]:
    """Rows that the policy with this digest can score, and the episodes that it must not: other weights played them.

    Args:
        findings: rows that are broken; they are left out.
    """
    broken = {(finding["episode"], finding["replan"]) for finding in findings}
    rows = [row for _, rows in stored for row in rows if row.policy_digest == digest]
    refused = [episode.spec.episode_id for episode, rows in stored if any(r.policy_digest != digest for r in rows)]
    return [row for row in rows if (row.spec.episode_id, row.replan) not in broken], refused


def _mask_finding(row: Row, grammar: Grammar) -> dict[str, Any] | None:
    try:
        recomputed = grammar.packed_masks(row.bins)
    except (ConfigError, IndexError) as error:  # a stream that no grammar of this codec allows has no mask
        return _about(row, row.replan, getattr(error, "what", "a bin that the codec does not have"))
    if np.array_equal(recomputed, row.legal_packed):
        return None
    if recomputed.shape != row.legal_packed.shape:
        return _about(row, row.replan, f"its mask has shape {row.legal_packed.shape}, not {recomputed.shape}")
    token = int(np.flatnonzero((recomputed != row.legal_packed).any(axis=1))[0])
    stored, again = (np.unpackbits(mask[token]) for mask in (row.legal_packed, recomputed))
    bin_ = int(np.flatnonzero(stored != again)[0])
    place = {"token": token, "bin": bin_, "stored": bool(stored[bin_]), "recomputed": bool(again[bin_])}
    return {**_about(row, row.replan, "its mask differs from the recomputed one"), **place}


def _about(of: Row | Episode, replan: int | None, what: str) -> dict[str, Any]:
    return {"episode": of.spec.episode_id, "replan": replan, "what": what}
