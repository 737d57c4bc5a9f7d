"""Evaluation: sealed held-out episodes and paired reads."""
