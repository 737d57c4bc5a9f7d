"""The SO-101 boat-to-disk task: physics, pictures, metrics and the scripted expert.

Importing this package makes ``gymnasium.make("vla_rl/BenchyDisk-v0")`` work. Nothing else is imported here, so that
`vla_rl.sim.metrics` stays usable without MuJoCo.
"""

from vla_rl.sim.registration import ENV_ID, register

__all__ = ["ENV_ID", "register"]

register()
