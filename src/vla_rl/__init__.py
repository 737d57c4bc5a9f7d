"""vla_rl: token-level GRPO for vision-language-action policies in MuJoCo, as pre-registered experiments."""

__version__ = "0.1.0"
