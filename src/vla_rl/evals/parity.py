"""Serving parity: do two ways of running a policy do the same on the same seeds.

In: two records of `vla-rl eval`, and bounds. Out: one JSON-able verdict with a row
a seed. The two ways differ in whatever is asked about: an export and its source, number formats, batch sizes, pools.
They play the same task at the same temperature, or nothing is judged. Left out: playing (`heldout`), and why they
differ.

The bounds are those of the documented runs, on 20 seeds: at most 2 successes and at most 0.30 of the share of episodes
that interact with the boat. They are wide. A path that touches the boat in 14 of 20 episodes instead of 20 passes them,
and a policy that succeeds in none passes with any other that succeeds in two; so the verdict also says in how many
seeds the two paths agree in every number, and how sure the difference in successes is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from vla_rl.errors import UsageError
from vla_rl.evals.headtohead import check_policy, head_to_head
from vla_rl.evals.paired import CONDITIONS, LONGEST, check_comparable
from vla_rl.policy.heads import AR

INTERACTED = "interacted"
# What a row says of the making of an episode, and not of the episode.
ASIDE = ("picture_motion", "frozen")
ALIKE = {**CONDITIONS, **LONGEST}


class ParitySettings(Protocol):
    """The bounds as the configuration has them."""

    max_success_difference: int
    max_interacted_difference: float


@dataclass(frozen=True)
class Bounds:
    """What two paths may differ by.

    Attributes:
        successes: count, at most.
        interacted: share of episodes, at most.
    """

    successes: int
    interacted: float

    @classmethod
    def of(cls, settings: ParitySettings) -> Bounds:
        """From a `ParityConfig`."""
        return cls(settings.max_success_difference, settings.max_interacted_difference)


def judge(a: Mapping[str, Any], b: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    """Hold record B against record A; differences are B - A.

    Args:
        a, b: records of `vla-rl eval`.
        bounds: both have to hold.

    Returns:
        what `headtohead.head_to_head` returns, and `bounds`, `successes_difference`, `interacted_difference` (of the
        shares), `identical` (seeds on which every number agrees), `per_seed`, `reasons` (a sentence a bound), `passed`.

    Raises:
        UsageError: seeds or conditions differ, temperature included, or a record does not say which episodes
            interacted.
    """
    check_comparable(a["summary"], b["summary"], ALIKE, where="the two records")
    compared = head_to_head(a, b)
    per_seed = _per_seed(a, b)
    touched = [_interacted(record, side) for record, side in ((a, "A"), (b, "B"))]
    successes = b["summary"]["successes"] - a["summary"]["successes"]
    share = (touched[1] - touched[0]) / len(per_seed)
    holds = (abs(successes) <= bounds.successes, abs(touched[1] - touched[0]) <= bounds.interacted * len(per_seed))
    words = ("within", "beyond")
    return {
        **compared,
        "bounds": asdict(bounds),
        "successes_difference": successes,
        "interacted_difference": share,
        "identical": sum(row["identical"] for row in per_seed),
        "per_seed": per_seed,
        "reasons": [
            f"successes differ by {successes:+d}, {words[not holds[0]]} the bound of {bounds.successes}",
            f"the shares that interact differ by {share:+.2f}, {words[not holds[1]]} the bound of "
            f"{bounds.interacted:.2f}",
        ],
        "passed": all(holds),
    }


def check_reference(record: Mapping[str, Any], ahead: Mapping[str, Any], where: str) -> None:
    """Refuse record A for an evaluation that has not been played yet, for any reason that can be known before.

    Args:
        record: of `vla-rl eval`.
        ahead: what is known of the evaluation: keys of a summary, those that are not known left out.
        where: for the message.

    Raises:
        UsageError: conditions differ, or the record does not say which policy it is of, is of another head than a run
            trains, saw other pictures than its own, or does not tell which episodes interacted.
    """
    check_policy(record, "A")
    _interacted(record, "A")
    if (frames := record["policy"]["frames"]) != "own":
        raise UsageError(
            f"the record's policy was shown {frames} frames, and not its own",
            where=where,
            remedy="evaluate it with eval.frames=own",
        )
    if (head := record["policy"].get("head")) not in (None, AR):
        raise UsageError(
            f"the record is of the {head} head, and the run trains and plays the {AR} head",
            where=where,
            remedy=f"evaluate it with policy.serve_head={AR}",
        )
    check_comparable(record["summary"], ahead, {key: name for key, name in ALIKE.items() if key in ahead}, where=where)


def _interacted(record: Mapping[str, Any], side: str) -> int:
    """Episodes that interacted.

    Raises:
        UsageError: an episode does not say.
    """
    told = [row.get(INTERACTED) for row in record["episodes"]]
    if any(value is None for value in told):
        raise UsageError(
            f"record {side} does not say which episodes interacted with the boat",
            where=INTERACTED,
            remedy="evaluate it again with `vla-rl eval`",
        )
    return sum(map(bool, told))


def _per_seed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Success, interaction, reward, length and tokens of both sides by seed, and whether the rows agree in every
    number."""
    rows_a, rows_b = ({row["seed"]: row for row in record["episodes"]} for record in (a, b))
    table = []
    for seed in sorted(rows_a):
        one, two = rows_a[seed], rows_b[seed]
        differing = {name for name in one.keys() | two.keys() if name not in ASIDE and one.get(name) != two.get(name)}
        pairs = {name: [one.get(name), two.get(name)] for name in ("success", INTERACTED, "ticks", "tokens")}
        known = one.get("reward") is not None and two.get("reward") is not None
        change = two["reward"] - one["reward"] if known else None
        table.append({"seed": seed, **pairs, "reward_change_cm": change, "identical": not differing})
    return table
