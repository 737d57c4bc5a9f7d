"""Rollouts: episode and row records, the pool of environments, waves and the row store."""
