"""Pre-registration: documents, ledger, state, rules, verdicts, and what identifies a run; no torch, no mujoco."""
