"""How busy the cores are with useful work, with the scripted expert and with the tiny policy.

Useful are the processor seconds of physics, pictures and inference (the expert's planning is its inference); waiting,
start-up, pipes, records and other programs are not. Utilisation is useful seconds over cores x wall, the wall taken
from the first episode's start to the last one's end with all processes up. The policy's waves are played with two
groups of slots and in lockstep by turns. Run with `make bench`, on a machine that has nothing else to do: the share of
processor time that other programs took is printed, and lowers the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import torch
from clocked import ClockedSampler

from vla_rl.config.compose import compose
from vla_rl.evals.expert import ExpertEvaluator
from vla_rl.rollout.pool import ProcessPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

PLUGINS, FIRST_SEED = ("clocked",), 300
WARM_UP = 4  # episodes before the clock starts: processes, models, first pictures
TICKS_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """Processor seconds of everything that runs here and of this program, between two moments."""

    def __init__(self) -> None:
        self.wall_s, self.all_s, self.own_s = time.monotonic(), _all_s(), _own_s()

    def others(self, cores: int) -> float:
        """Share of `cores` that other programs have used since."""
        wall_s = time.monotonic() - self.wall_s
        return max(0.0, (_all_s() - self.all_s) - (_own_s() - self.own_s)) / (cores * wall_s)


def _all_s() -> float:
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICKS_S


def _own_s() -> float:
    """This process and its children, also those that have ended."""
    total = sum(os.times()[:4])
    for pid in _children(os.getpid()):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS_S
        except OSError:
            pass
    return total


def _children(pid: int) -> list[int]:
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            found += [int(child) for child in file.read().split()]
    return found


def expert(cores: int, episodes: int, image_px: int) -> dict[str, Any]:
    """The evaluation of the expert, as `vla-rl eval policy=expert` runs it: a pair of pictures every 30 ticks."""
    sim = {
        **compose("eval", [f"sim.image_px={image_px}"]).component_spec("sim"),
        "_target_": "clocked.ClockedExpertBoat",
    }
    machine = Machine()
    plays = ExpertEvaluator(workers=cores, env_spec=sim, plugins=PLUGINS).run(
        range(FIRST_SEED, FIRST_SEED + WARM_UP + episodes)
    )
    metrics = [play.episode.metrics for play in plays][WARM_UP:]
    wall_s = max(m["ended_s"] for m in metrics) - min(m["began_s"] for m in metrics)
    return {
        "what": f"expert, {episodes} episodes, {image_px} px",
        "utilisation": sum(m["useful_s"] for m in metrics) / (cores * wall_s),
        "others": machine.others(cores),
        "wall_s": wall_s,
        "episodes_per_minute": 60 * episodes / wall_s,
        "ticks": statistics.fmean(m["ticks"] for m in metrics),
        "simulated_per_wall": sum(m["ticks"] for m in metrics) / 30 / wall_s,
    }


def policy(cores: int, episodes: int, slots: int, repeats: int) -> list[dict[str, Any]]:
    """A quickstart wave (temperature 0.7, at most 450 ticks, four draws a seed) of the bundled policy."""
    torch.set_num_threads(cores)
    reader = compose("config", ["experiment=quickstart"])
    network = reader.component("policy", device="cpu")
    sim = {**reader.component_spec("sim"), "_target_": "clocked.ClockedBoat"}
    specs = [EpisodeSpec(FIRST_SEED + i // 4, i % 4) for i in range(episodes)]
    rows: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    with ProcessPool(workers=cores, groups=2, timeout_s=300.0, env_spec=sim, plugins=PLUGINS) as pool:
        for repeat in range(repeats + 1):
            for groups, measured in rows.items():
                pool.groups, sampler = groups, ClockedSampler(reader.component("sampler", policy=network, run_seed=0))
                machine = Machine()
                wave = run_wave(
                    sampler=sampler,
                    pool=pool,
                    specs=specs if repeat else specs[:WARM_UP],
                    temperature=0.7,
                    slots=slots,
                )
                env_s = sum(episode.metrics["useful_s"] for episode in wave.episodes)
                measured.append(
                    {
                        "utilisation": (env_s + sampler.useful_s) / (cores * wave.wall_s),
                        "others": machine.others(cores),
                        "wall_s": wave.wall_s,
                        "environment_s": env_s,
                        "inference_s": sampler.useful_s,
                        "rows": sum(asked for _, asked in sampler.calls),
                        "calls": len(sampler.calls),
                    }
                )
    return [
        {
            "what": f"tiny policy, {episodes} episodes in {slots} slots, "
            + ("two groups" if groups == 2 else "lockstep"),
            **{key: statistics.median(row[key] for row in measured[1:]) for key in measured[0]},
        }
        for groups, measured in rows.items()
    ]


def long_episodes(cores: int, image_px: int, episodes: int) -> dict[str, Any]:
    """Episodes of 900 ticks with an arm that stays at home, and two pictures every 30 ticks, through the pool."""
    reader = compose("eval", [f"sim.image_px={image_px}", "sim.terminate_on=never"])
    sim = {**reader.component_spec("sim"), "_target_": "clocked.ClockedBoat"}
    with ProcessPool(workers=cores, groups=1, timeout_s=300.0, env_spec=sim, plugins=PLUGINS) as pool:
        slots = list(range(2 * cores))
        useful_s, done, started, machine = 0.0, 0, 0.0, Machine()
        while done < episodes + len(slots):
            if done == len(slots):  # the first episodes are the warm-up; a reset's seconds are the episode's
                started, machine, useful_s = time.monotonic(), Machine(), 0.0
            seen = pool.reset([(slot, FIRST_SEED + done + slot) for slot in slots])
            while not all(result.done for result in seen):
                home = seen[0].observation
                assert home is not None
                seen = pool.step([(slot, home.state_deg.repeat(30).reshape(6, 30).T) for slot in slots])
            useful_s += sum((result.metrics or {})["useful_s"] for result in seen)
            done += len(slots)
        wall_s = time.monotonic() - started
    return {
        "what": f"900 ticks with 30 pairs of {image_px} px pictures",
        "utilisation": useful_s / (cores * wall_s),
        "others": machine.others(cores),
        "wall_s": wall_s,
        "episodes_per_minute": 60 * (done - len(slots)) / wall_s,
        "simulated_per_wall": (done - len(slots)) * 30.0 / wall_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2, help="cores to use, and worker processes")
    parser.add_argument("--episodes", type=int, default=64, help="of a wave of the policy")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-policy", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    rows = [
        expert(options.cores, 100, 112),
        expert(options.cores, 100, 224),
        long_episodes(options.cores, 224, 8 * options.cores),
    ]
    if not options.skip_policy:
        rows += policy(options.cores, options.episodes, options.slots, options.repeats)
    if options.json:
        print(json.dumps({"cores": options.cores, "rows": rows}))
        return
    print(
        f"{options.cores} cores\n\n{'':<56}{'useful':>7}{'others':>8}{'wall s':>8}{'episodes/min':>14}{'sim/wall':>10}"
    )
    for row in rows:
        per_minute = f"{row['episodes_per_minute']:.0f}" if "episodes_per_minute" in row else ""
        simulated = f"{row['simulated_per_wall']:.0f}" if "simulated_per_wall" in row else ""
        print(
            f"{row['what']:<56}{row['utilisation']:>7.0%}{row['others']:>8.0%}{row['wall_s']:>8.1f}"
            f"{per_minute:>14}{simulated:>10}"
        )
        if "rows" in row:
            print(
                f"    environments {row['environment_s']:.1f} s, inference {row['inference_s']:.1f} s "
                f"for {row['rows']:.0f} rows in {row['calls']:.0f} calls"
            )
    if any(row["others"] > 0.05 for row in rows):
        print("\nOther programs were running: repeat this on an idle machine.")


if __name__ == "__main__":
    main()
