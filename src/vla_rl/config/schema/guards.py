"""Keys of what stops a training run: tripwires, the budget, and the gates before the first wave."""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.config.schema.key import key

MODES = ("off", "record", "armed")
# Documented bounds of two ways of serving one policy, on 20 seeds.
PARITY_SUCCESSES, PARITY_INTERACTED = 2, 0.30


@dataclass
class TripwiresConfig:
    strikes: str = key("off", "a reset that touched the boat", choices=MODES)
    non_finite: str = key("armed", "a loss or gradient that is not finite", choices=MODES)
    collapse: str = key("off", "groups without spread, wave after wave", choices=MODES)
    collapse_std_cm: float = key(0.05, "the median group's spread (population std, cm) counts below this", at_least=0)
    collapse_waves: int = key(3, "consecutive waves until the wire fires", at_least=1)
    knockaway: str = key("off", "share of episodes that end 1 cm or more farther away", choices=MODES)
    knockaway_factor: float = key(2.0, "the share counts above this times the baseline", above=0)
    knockaway_baseline: float | None = key(
        None, "share that is normal; null: that of the run's first wave, which is not judged", at_least=0, at_most=1
    )
    knockaway_waves: int = key(3, "consecutive waves until the wire fires", at_least=1)
    setback: str = key("off", "share of episodes in which the boat was 1 cm or more farther away", choices=MODES)
    setback_share: float = key(0.75, "the share counts above this", at_least=0, at_most=1)
    setback_waves: int = key(3, "consecutive waves until the wire fires", at_least=1)
    divergence: str = key("off", "the reward rises while success falls", choices=MODES)
    divergence_waves: int = key(6, "waves looked at: the later half against the earlier one", at_least=2)
    divergence_reward_cm: float = key(0.5, "the mean reward counts if it rose by at least this, cm", at_least=0)
    divergence_success: float = key(
        0.05, "the share of successes counts if it fell by at least this", at_least=0, at_most=1
    )
    kl_stop: str = key("off", "distance to the policy at step 0 (anchor_kl, needs loss.kl_rows)", choices=MODES)
    kl_stop_nats: float = key(0.06, "one reading above this fires, k3 in nats a token", above=0, unit="nats a token")
    entropy: str = key("off", "entropy of the tokens that were learned from", choices=MODES)
    entropy_floor_nats: float | None = key(
        None, "one reading below this fires, nats a token; null: none", at_least=0, unit="nats a token"
    )
    entropy_ceiling_nats: float | None = key(
        None, "one reading above this fires, nats a token; null: none", at_least=0, unit="nats a token"
    )
    clip: str = key(
        "off",
        "share of tokens whose ratio is outside the band (clip_fraction); 0 with loss.old_logp=rescored and one pass",
        choices=MODES,
    )
    clip_share: float = key(0.2, "one reading above this fires", at_least=0, at_most=1)
    heldout: str = key("off", "held-out reward, paired with the first evaluation", choices=MODES)
    heldout_line_cm: float = key(-1.0, "fires if the 95 % interval of the mean change lies entirely below this, cm")
    pace: str = key("off", "episodes a minute, projected from the first that a wave plays", choices=MODES)
    pace_episodes: int = key(8, "episodes that have to end before it is projected", at_least=1)
    pace_episodes_per_min: float | None = key(
        None, "slowest pace that is let through", above=0, unit="episodes a minute"
    )


@dataclass
class BudgetConfig:
    gpu_h: float | None = key(None, "GPU-hours of all launches of the run; null: no limit", at_least=0)
    wall_h: float | None = key(None, "hours of all launches of the run, on any device; null: no limit", at_least=0)
    env_ticks: int | None = key(None, "ticks of finished episodes, held-out ones too; null: no limit", at_least=0)


@dataclass
class GatesConfig:
    mixed_frac: float | None = key(
        None,
        "least share of groups with a success and a failure in the first wave; null: no bar",
        at_least=0,
        at_most=1,
    )
    interaction_episodes: int = key(
        0, "greedy episodes before the first wave, of which one must move the boat; 0: none are played", at_least=0
    )
    parity_record: str | None = key(
        None,
        "directory of a `vla-rl eval` of this policy on eval.seeds through another serving path, with which the "
        "evaluation here must agree before the first wave; null: no such gate",
    )
    parity_successes: int = key(PARITY_SUCCESSES, "largest difference in successes between the two", at_least=0)
    parity_interacted: float = key(
        PARITY_INTERACTED, "largest difference in their share of episodes that moved the boat", at_least=0, at_most=1
    )
    idle_device: bool = key(False, "refuse a GPU that something else is using; passes on a CPU")
    idle_max_foreign_gib: float = key(1.0, "memory of the GPU that others may hold, GiB", at_least=0)
    idle_min_free_gib: float = key(0.0, "memory of the GPU that must be free, GiB", at_least=0)
