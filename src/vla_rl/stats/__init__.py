"""Statistics: exact intervals and the paired bootstrap (numpy and scipy only)."""
