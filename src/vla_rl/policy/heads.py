"""The two heads that a policy can act with, and what does not go with the flow head.

In: the name of a head. Out: an error that says what to change, before anything is loaded. Nothing
here imports torch.
"""

from __future__ import annotations

from vla_rl.errors import ConfigError

AR, FLOW = "ar", "flow"
HEADS = (AR, FLOW)
KEY = "policy.serve_head"


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
