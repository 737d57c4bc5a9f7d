"""Statistics: exact tails and intervals, paired tests, seeded bootstraps, Holm, power (numpy and scipy only).

`scipy.special` alone is used, and loaded by the functions that need it: `scipy.stats` takes longer to import than most
commands take to run. The tests hold every function against `scipy.stats`, closed forms or published tables.
"""
