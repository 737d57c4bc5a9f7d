"""GRPO: rewards, group advantages, the token loss, surfaces, the update, checkpoints, the run directory and the
trainer."""
