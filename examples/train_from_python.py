"""GRPO from Python, without configuration files: plain objects into the trainer.

``python examples/train_from_python.py outputs/from_python`` trains the bundled base for one small step and evaluates it
before and after, in a minute or two on a CPU. Every object may be replaced by one of your own with the same methods.
"""

import dataclasses
import sys
from contextlib import closing
from pathlib import Path

from vla_rl.config.schema import CheckpointConfig, GeometryConfig, LossConfig, OptimConfig, SimConfig
from vla_rl.evals.heldout import evaluate
from vla_rl.policy.policy import load_policy
from vla_rl.policy.sampler import GrammarSampler
from vla_rl.rl.reward import documented_reward
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.summary import Evaluation
from vla_rl.rl.surfaces import TextStack
from vla_rl.rl.trainer import GrpoTrainer
from vla_rl.rollout.pool import SerialPool


def main(directory: str, max_ticks: int = 300) -> None:
    task = "Pick up the toy boat and place it on the wooden disk."
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=task)
    sampler = GrammarSampler(policy=policy, run_seed=0, batch_rows=4)
    reward, run_dir = documented_reward(), RunDir.create(Path(directory), config={}, manifest={})
    with closing(run_dir), SerialPool(env_spec=dataclasses.asdict(SimConfig(max_ticks=max_ticks))) as pool:

        def held_out(step: int) -> Evaluation:
            read = evaluate(
                sampler=sampler, pool=pool, reward=reward, seeds=[300, 301], temperature=0.0, slots=4, scene=None,
                on_event=lambda event: trainer.beat(event),
            )  # fmt: skip
            return Evaluation(read.summary, ())

        trainer = GrpoTrainer(
            policy=policy, sampler=sampler, pool=pool, surface=TextStack(), reward=reward,
            geometry=GeometryConfig(seeds=1, draws=4, temperature=0.7), loss=LossConfig(), optim=OptimConfig(lr=1e-5),
            checkpoint=CheckpointConfig(), steps=1, slots=4, max_replans=pool.describe()["max_replans"],
            run_dir=run_dir, evaluate=held_out,
        )  # fmt: skip
        outcome = trainer.run()
    print(f"{outcome.counters.episodes} episodes, {outcome.counters.updates_applied} updates, files in {directory}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
