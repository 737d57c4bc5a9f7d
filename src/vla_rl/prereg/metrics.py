"""Names that rules may ask for: keys of `train.jsonl`, metrics of an episode.

In: a registration. Out: names that nothing writes, so that a misspelt one is found before a run is spent on it. Only
what this package writes is known; with a simulator or evaluator of one's own every name is let through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vla_rl.prereg.document import Registration

SERIES = frozenset(
    """anchor_k3_pre anchor_kl approx_kl chosen_nll clip_fraction earned_progress_mean_cm entropy env_steps_per_s
    episodes eval_s gpu_h gpu_h_total grad_norm groups_kept groups_refilled groups_total knockaway_frac
    lone_replans loss masked_violations max_ratio mean_predict_batch mean_ratio median_group_std_cm min_ratio
    mixed_groups_frac oom_retries predict_latency_s predict_rounds reward_mean rolled_back rollout_gap rollout_s
    rows save_s setback_frac step step_skipped strikes success_advantage_share successes tip_frac tokens
    ungrasped_disp_mean_cm update_kl update_s vram_gib wider_bins zero_fallbacks""".split()
)
_CUT = """carry_speed_cm_s carry_speed_nominal_cm_s engaged final_cm final_upright final_z_mm grasped_progress_cm
    interacted knockaway lifted max_setback_cm min_cm moved pinch_fail pinch_ticks pinched progress_cm
    progress_final_cm setback ticks tipped touched ungrasped_displacement_cm""".split()
EPISODE = frozenset(
    [
        *_CUT,
        *(f"documented_{name}" for name in _CUT),
        *"""hopeless initial_cm masked_violations nll reach_bin replans reset_strikes reward seed strict_tick success
    success_documented success_strict success_test success_tick tokens wider_bins zero_fallbacks""".split(),
    ]
)


def misspelt(registration: Registration) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(read or gate, name, names there are) of every name that no run would write."""
    ours = all(
        str(registration.config[part]["_target_"]).startswith("vla_rl.") for part in ("sim", "evaluator", "reward")
    )
    kinds = {m.id: m.kind for m in registration.measurements}
    for name, rule in registration.rules().items():
        metric: Any = getattr(rule, "metric", None)
        for kind in {kinds[m] for m in rule.measurements()}:
            known = {"evaluation": EPISODE, "series": SERIES}.get(kind)
            if ours and metric is not None and known is not None and metric not in known:
                yield name, metric, known
