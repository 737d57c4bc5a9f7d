"""Pre-registration: what identifies a run (digests, git facts, package versions), without torch or mujoco."""
