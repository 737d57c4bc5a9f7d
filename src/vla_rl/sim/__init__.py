"""The SO-101 boat-to-disk task: physics, pictures, metrics and the scripted expert.

Nothing is imported here, so that `vla_rl.sim.metrics` stays usable without MuJoCo.
"""
