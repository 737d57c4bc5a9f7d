"""What the held-out evaluation inside a training command cannot do: a check of its settings, for RL and for SFT."""

from __future__ import annotations

from vla_rl.config.schema import EvalConfig
from vla_rl.errors import ConfigError


def check_plain(settings: EvalConfig) -> None:
    """Refuse what only `vla-rl eval` does.

    Raises:
        ConfigError: foreign frames or traces are asked for.
    """
    if settings.frames != "own" or settings.traces:
        raise ConfigError(
            "a training run evaluates the policy with its own frames, and stores no traces",
            where="eval.frames, eval.traces",
            remedy="evaluate a checkpoint with `vla-rl eval`",
        )
