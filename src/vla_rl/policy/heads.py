"""The two heads that a policy can act with, what does not go with the flow head, and what trained each of them last.

In: the name of a head, or what a checkpoint says of its heads. Out: an error that says what to change, before anything
is loaded. Nothing here imports torch.

Both heads read one trunk. Training that moves the trunk and teaches one head only leaves the other one stale: it reads
something else than it was trained on. What is stale is recorded with the checkpoint, and acts only if it is told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vla_rl.errors import ConfigError

AR, FLOW = "ar", "flow"
HEADS = (AR, FLOW)
LEROBOT = "lerobot"  # stands for the one head of a policy of LeRobot's; nothing serves or trains it by this name
NAMES = {AR: "token head", FLOW: "flow head"}
KEY = "policy.serve_head"
ALLOW_STALE = "policy.allow_stale_head"


@dataclass(frozen=True)
class HeadState:
    """What is known of one head of a checkpoint.

    Attributes:
        trained_by: what trained it last: an objective of supervised fine-tuning (``ar``, ``flow``, ``joint``), ``rl``,
            or None where nobody wrote it down.
        insulated: that training kept the flow term's gradient out of the trunk.
        stale: the trunk has moved since.
    """

    trained_by: str | None = None
    insulated: bool = False
    stale: bool = False


Heads = Mapping[str, HeadState]  # a head that is absent is taken at its word: trained, and not stale


def is_stale(heads: Heads, head: str) -> bool:
    """Whether the trunk has moved since a head was trained, as far as is known."""
    return heads.get(head, HeadState()).stale


def left_behind(heads: Heads, head: str) -> dict[str, HeadState]:
    """The same, a head now stale."""
    return {**heads, head: replace(heads.get(head, HeadState()), stale=True)}


def check_not_stale(heads: Heads, head: str, *, allow: bool, where: str) -> None:
    """Refuse to act with a head whose trunk has moved since it was trained.

    Args:
        allow: it was asked for, e.g. to measure what the move has cost.
        where: the checkpoint.

    Raises:
        ConfigError: it is stale, and that is not allowed.
    """
    if is_stale(heads, head) and not allow:
        other = AR if head == FLOW else FLOW
        raise ConfigError(
            f"the {NAMES[head]} is stale: the trunk has moved since it was trained (by the {NAMES[other]}'s training)",
            where=f"{KEY}={head}, {where}",
            remedy=f"{ALLOW_STALE}=true measures it all the same; `vla-rl sft` with sft.objective=joint, or "
            f"sft.objective={head}, trains it beside the new trunk",
        )


def check_head(head: str) -> None:
    """Refuse a head that there is not.

    Raises:
        ConfigError: listing those that there are.
    """
    if head not in HEADS:
        raise ConfigError(
            f"no head {head!r} to serve", where=KEY, remedy=" or ".join(f"use {KEY}={each}" for each in HEADS)
        )


def check_token_head(head: str | None, what: str) -> None:
    """Refuse to sample tokens from a policy that acts with its flow head.

    Args:
        head: of the policy; None for one that has no choice of heads.
        what: the subject of the message, e.g. ``"the trainer"``.

    Raises:
        ConfigError: the head is the flow head.
    """
    if head == FLOW:
        raise ConfigError(
            f"{what} needs the token head, whose actions are drawn token by token; the flow head has no tokens",
            where=KEY,
            remedy=f"use {KEY}={AR}; `vla-rl eval {KEY}={FLOW}` evaluates the other head",
        )


def check_flow_temperature(head: str | None, temperature: float) -> None:
    """Refuse a temperature for a policy that acts with its flow head.

    Args:
        head: of the policy; None for one that has no choice of heads.

    Raises:
        ConfigError: the temperature is not 0.
    """
    if head == FLOW and temperature != 0:
        raise ConfigError(
            f"the flow head knows no temperature {temperature:g}: its chunks start from keyed noise of size 1",
            where="eval.temperature",
            remedy=f"use eval.temperature=0, or {KEY}={AR}",
        )
