"""What two processes do together in the tests of shared updates; a program that torchrun starts.

`compare DIRECTORY` takes gradients and updates in double precision and leaves what came out in files. `train DIRECTORY
STEPS KILL` runs (or resumes) the toy run with its updates shared; KILL is `never`, or `RANK:COUNT`: that rank kills
itself at the COUNT-th micro-batch that it scores.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from one_update import ADVANTAGES, TEMPERATURE, sampled_rows, settings
from tiny_policy import tiny_policy
from toy_run import lora, toy_trainer

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.errors import VlaRlError
from vla_rl.policy.rowgradients import leaf_of, row_gradient
from vla_rl.rl import update as update_module
from vla_rl.rl.learner import Learner
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.sharedlearner import SharedLearner, Together, help_out
from vla_rl.rl.student import Student
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack
from vla_rl.rl.team import Team
from vla_rl.rl.update import Fixed, accumulate_gradient

SURFACES = {"full": Full, "patch_only": PatchOnly, "lora": lora}
CASES = [("full", "token", 1), ("full", "episode", 3), ("full", "constant", 5), ("patch_only", "token", 2),
         ("lora", "token", 2)]  # fmt: skip
# Name: surface, loss and optimiser of two updates that follow each other.
UPDATES = {
    "everything": (
        "full",
        {"epochs": 2, "kl_beta": 0.3, "entropy_bonus": 0.05, "old_logp": "recorded"},
        {"weight_decay": 0.1},
    ),
    "patch_only": ("patch_only", {"epochs": 2}, {}),
    "lora": ("lora", {"epochs": 2, "kl_beta": 0.3}, {"recompute": True}),
}


def double_policy():
    """The tiny policy in double precision; an adapter's pairs, which come later, are not."""
    policy = tiny_policy()
    policy.model.double()
    return policy


def prepared(surface, policy):
    """Its parameters, all in double precision."""
    parameters = surface.trainable(policy)
    policy.model.double()
    if policy.lora is not None:  # B is zero at first, and then A has no gradient
        with torch.no_grad():
            for _, parameter in parameters:
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel(), dtype=torch.double).view_as(parameter))
    return parameters


def whole_table(value, parameter):
    """What one process has of the rows of a table that a pass reaches, as two have it of the whole table."""
    table = row_gradient(parameter)
    if table is None or not value.dim():
        return value
    return value.new_zeros(parameter.shape).index_copy_(0, table.rows, value)


def taught(rows, constants):
    return select_lessons(rows, ADVANTAGES, weighting=constants.weighting, episode_tokens=constants.episode_tokens)


def gradients_alone(rows, case):
    """Gradients by name, and sums, of one process."""
    name, weighting, size = case
    policy, constants = double_policy(), settings(weighting, microbatch_rows=size)
    parameters = prepared(SURFACES[name](), policy)
    lessons, divisor = taught(rows, constants)
    sums = accumulate_gradient(policy, lessons, divisor, constants, TEMPERATURE, Fixed(None, None))
    grads = {name: (leaf_of(p).grad, p) for name, p in parameters}
    return {name: whole_table(grad, p) for name, (grad, p) in grads.items() if grad is not None}, sums


def gradients_shared(team, rows, case):
    """The same of this process's share; whole."""
    name, weighting, size = case
    policy, constants, surface = double_policy(), settings(weighting, microbatch_rows=size), SURFACES[name]()
    names = [name for name, _ in prepared(surface, policy)]
    student = Student(policy, names, surface, OptimConfig(), constants)
    lessons, divisor = taught(rows, constants)
    ranks = Together(team, student.policy, lessons[0].row, TEMPERATURE)
    mine = lessons[team.rank :: team.size]
    fixed = Fixed(None, None)
    sums = accumulate_gradient(student.policy, mine, divisor, constants, TEMPERATURE, fixed, ranks=ranks)
    whole = {n: p.grad.full_tensor() for n, p in student.parameters if p.grad is not None}
    return whole, ranks.total(sums)


class Prepared:
    """A surface in double precision, for learners that ask for it themselves."""

    def __init__(self, name):
        self._surface = SURFACES[name]()
        self.allows_decay, self.moving_rows = self._surface.allows_decay, self._surface.moving_rows

    def trainable(self, policy):
        return prepared(self._surface, policy)


def constants_of(name):
    surface, loss, optim = UPDATES[name]
    optim = OptimConfig(**{"lr": 1e-3, "microbatch_rows": 3, **optim})
    return Prepared(surface), optim, UpdateSettings.of(LossConfig(**loss), optim)


def updates(rows, name, kind=Learner):
    """Two updates, a third that is undone, and one after going back to a checkpoint; all that can be compared."""
    from vla_rl.rl.anchor import Anchor

    surface, optim, constants = constants_of(name)
    policy = double_policy()
    policy.recompute = optim.recompute
    parameters = surface.trainable(policy)
    reached = {
        n: 1.0 if row_gradient(p) is None else whole_table(torch.ones_like(leaf_of(p)), p) for n, p in parameters
    }
    learner = kind(policy=policy, parameters=parameters, surface=surface, optim=optim, settings=constants)
    told, told_of = {}, []
    anchor = Anchor.of(policy, parameters) if constants.objective.kl_beta else None

    def keep(moment):
        learner.gather()
        told[f"{moment} weights"] = {n: p.detach().clone() for n, p in parameters}
        moments = {
            f"{n}.{field}": whole_table(value, p).clone()
            for n, p in parameters
            for field, value in learner.optimizer.state.get(leaf_of(p), {}).items()
        }
        learner.saved()
        told[f"{moment} moments"] = moments

    def update(step):
        return learner.update(
            rows, ADVANTAGES, temperature=TEMPERATURE, step=step, anchor=anchor,
            progress=lambda done, total: told_of.append((done, total)),
        )  # fmt: skip

    tokens = learner.dry_update(TEMPERATURE, rows[0])
    keep("dry")
    results = [update(1), update(2)]
    keep("second")
    undo = learner.snapshot()
    update(3)
    keep("third")
    undo.put_back()
    keep("undone")
    stopped = stop(learner, rows, anchor)
    keep("stopped")
    with torch.no_grad():  # as a checkpoint of another run would be put in place
        for index, (name, parameter) in enumerate(parameters):
            parameter.add_(1e-3 * (index % 3))
            table = row_gradient(parameter)
            moments = {"exp_avg": torch.full_like(parameter, 1e-3), "exp_avg_sq": torch.full_like(parameter, 1e-4)}
            moments = {field: value * reached[name] for field, value in moments.items()}
            if table is not None:
                moments = {field: value[table.rows] for field, value in moments.items()}
            learner.optimizer.state[leaf_of(parameter)] = {"step": torch.tensor(7.0), **moments}
    learner.spread()
    results.append(update(4))
    keep("restored")
    return {**told, "results": [vars(result) for result in results], "tokens": tokens, "stopped": stopped,
            "told": (told_of[0][1], told_of[-1])}  # fmt: skip


def stop(learner, rows, anchor):
    """Stop an update in its first pass, the way the wall limit does."""

    def progress(done, total):
        raise TimeoutError

    try:
        learner.update(rows, ADVANTAGES, temperature=TEMPERATURE, step=3, anchor=anchor, progress=progress)
    except TimeoutError:
        learner.forget()
        return True
    return False


def compare(team, directory: Path) -> None:
    rows = sampled_rows()
    for index, case in enumerate(CASES):
        found = gradients_shared(team, rows, case)
        if team.rank == 0:
            torch.save(found, directory / f"gradients_{index}.pt")
    for name in UPDATES:
        if team.rank == 0:
            torch.save(updates(rows, name, partial(SharedLearner, team)), directory / f"{name}.pt")
            team.send("end")
        else:
            surface, optim, constants = constants_of(name)
            help_out(team, double_policy(), surface, optim, constants)


def kill_at(kill: str, rank: int) -> None:
    """Let this process die at a micro-batch, if it is the one that has to."""
    who, _, when = kill.partition(":")
    if who != str(rank):
        return
    real, left = update_module.score_rows, int(when)

    def score_rows(*arguments):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    update_module.score_rows = score_rows


def train(team, directory: Path, steps: int, kill: str) -> None:
    loss, optim = LossConfig(), OptimConfig(lr=3e-3, microbatch_rows=4)
    kill_at(kill, team.rank)
    if team.rank == 0:
        with team.led():
            team.connect("cpu", 60.0)
            trainer = toy_trainer(directory, steps=steps, learner=partial(SharedLearner, team))
            try:
                trainer.run()
            finally:
                trainer.run_dir.close()
    else:
        team.connect("cpu", 60.0)
        help_out(team, tiny_policy(), TextStack(), optim, UpdateSettings.of(loss, optim))


def main() -> None:
    torch.set_num_threads(1)
    what, directory, *more = sys.argv[1:]
    team = Team()
    if what == "compare":
        team.connect("cpu", 60.0)
        compare(team, Path(directory))
    else:
        try:
            train(team, Path(directory), int(more[0]), more[1])
        except VlaRlError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
