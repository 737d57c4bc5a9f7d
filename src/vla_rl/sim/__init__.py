"""The SO-101 boat-to-disk task: physics, pictures, metrics and the scripted expert.

Importing this package makes ``gymnasium.make("vla_rl/BenchyDisk-v0")`` and ``"vla_rl/BenchyDiskTicks-v0"`` work.
Nothing else is imported here, so that `vla_rl.sim.metrics` stays usable without MuJoCo.
"""

from vla_rl.sim.registration import ENV_ID, TICKS_ID, register

__all__ = ["ENV_ID", "TICKS_ID", "register"]

register()
