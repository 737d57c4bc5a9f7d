"""The objectives of supervised training, which of them may start from which checkpoint (the transition matrix of
docs/sft.md), and what a checkpoint says of its heads afterwards.

In: what a checkpoint holds (or that there is none) and what is asked for. Out: nothing, or a refusal that names the
remedy; the state of both heads after training; the expert to train. One rule is behind the cells: no head goes stale
unless somebody has said so, and nothing is called trained that was not.
Nothing here imports torch before an expert is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_rl.errors import ConfigError
from vla_rl.policy.heads import AR, FLOW, HEADS, Heads, HeadState, is_stale, left_behind

if TYPE_CHECKING:
    from vla_rl.policy.expert import ActionExpert
    from vla_rl.policy.parts import Parts
    from vla_rl.policy.policy import VlaPolicy

JOINT = "joint"  # beside the names of the heads
HEAD_WIDTH = 32  # of the expert's attention, as everywhere in a twin


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    Attributes:
        kind: ``ar``, ``flow`` or ``joint``.
        ce_weight: of the token term beside the flow term.
        insulate: no gradient of the flow term into the trunk.
    """

    kind: str = AR
    ce_weight: float = 1.0
    insulate: bool = False

    @property
    def has_tokens(self) -> bool:
        return self.kind != FLOW

    @property
    def has_flow(self) -> bool:
        return self.kind != AR

    @property
    def trains_trunk(self) -> bool:
        return self.has_tokens or not self.insulate


@dataclass(frozen=True)
class Start:
    """What training starts from.

    Attributes:
        trained: a policy; otherwise its token head has learned nothing yet.
        place: an action expert can be stored with it: a twin, or a release that has one.
        expert: there is one.
        stale: heads whose trunk has moved since they were trained.
    """

    trained: bool
    place: bool
    expert: bool
    stale: frozenset[str]

    @classmethod
    def of(cls, parts: Parts) -> Start:
        """Of a policy checkpoint."""
        opened, heads = parts.opened, parts.metadata.heads
        expert = bool(opened and opened.expert)
        place = opened is not None and (expert or not opened.released)
        return cls(True, place, expert, frozenset(head for head in HEADS if is_stale(heads, head)))


FRESH_TWIN = Start(trained=False, place=True, expert=False, stale=frozenset())
OTHER_MODEL = Start(trained=False, place=False, expert=False, stale=frozenset())  # that is given action tokens


def check_settings(objective: Objective, *, fresh_expert: bool, expert_lr: float | None, eval_head: str | None) -> None:
    """Refuse settings that say nothing under the objective, whatever it starts from.

    Raises:
        ConfigError: naming what to leave away.
    """
    if not objective.has_flow:
        given = {"sft.insulate": objective.insulate, "sft.expert": fresh_expert, "sft.expert_lr": expert_lr is not None}
        for name in (name for name, is_given in given.items() if is_given):
            raise _refused(
                "the objective ar trains no action expert", name, f"leave {name} away, or sft.objective=joint"
            )
        if eval_head == FLOW:
            raise _refused("the objective ar trains no flow head to evaluate", "sft.eval_head", "sft.eval_head=ar")
    if objective.ce_weight != 1.0 and objective.kind != JOINT:
        what = f"the objective {objective.kind} has one term, so there is nothing to weigh"
        raise _refused(what, "sft.ce_weight", "leave sft.ce_weight away, or sft.objective=joint")
    if objective.has_flow and eval_head == AR and not objective.has_tokens and not objective.trains_trunk:
        what = "nothing that the token head reads is trained, so each evaluation of it would be the same"
        raise _refused(what, "sft.eval_head", "sft.eval_head=flow")


def check_transition(start: Start, objective: Objective, *, fresh_expert: bool, allow_stale: bool) -> None:
    """The matrix.

    Args:
        fresh_expert: an expert is to be drawn anew.
        allow_stale: a head that the objective does not train may go stale.

    Raises:
        ConfigError: the cell is refused; its remedy says which keys lead on.
    """
    if not objective.has_flow:
        if start.expert and FLOW not in start.stale and not allow_stale:
            raise _refused(
                "training the tokens alone moves the trunk under the flow head of sft.base, which goes stale",
                "sft.objective=ar",
                "sft.objective=joint trains both heads; sft.allow_stale_head=true goes on and marks the flow head",
            )
        return
    where = f"sft.objective={objective.kind}"
    if not start.place:
        raise _refused(
            "an action expert has no place in this base: it is a model of another family, or a release without one",
            where,
            "use sft.objective=ar, or start from a twin or from a release that stores model.action_expert.*",
        )
    if not start.trained and not objective.has_tokens:
        left = "trunk and token head" if objective.insulate else "token head"
        raise _refused(
            f"the {left} of a fresh twin would be left as drawn",
            where,
            "use sft.objective=joint, or name a trained policy with sft.base",
        )
    if start.trained and not start.expert and not fresh_expert:
        raise _refused(
            "sft.base stores no action expert to train", where, "sft.expert=fresh draws one; or sft.objective=ar"
        )
    if objective.trains_trunk and not objective.has_tokens and AR not in start.stale and not allow_stale:
        raise _refused(
            "the flow term alone moves the trunk under the token head, which goes stale",
            where,
            "sft.insulate=true trains the expert alone; sft.objective=joint trains both heads; "
            "sft.allow_stale_head=true goes on and marks the token head",
        )


def heads_after(heads: Heads, objective: Objective, *, has_expert: bool) -> dict[str, HeadState]:
    """What is known of both heads once an objective has trained."""
    state = HeadState(objective.kind, objective.insulate)
    if not objective.has_flow:
        after = {**heads, AR: state}
        return left_behind(after, FLOW) if has_expert else after
    if objective.has_tokens:
        return {AR: state, FLOW: state}
    after = {**heads, FLOW: state}
    return left_behind(after, AR) if objective.trains_trunk else after


def expert_to_train(policy: VlaPolicy, start: Start, *, fresh: bool, width: int, seed: int) -> ActionExpert:
    """The action expert of a start that has passed the matrix, on the policy: the stored one, or one drawn anew.

    Args:
        fresh: draw its weights anew, in the sizes of a stored one.
        width: of a new one's action stream, a multiple of `HEAD_WIDTH`.
        seed: decides drawn weights.

    Raises:
        ConfigError: a width that cannot be divided into heads.
        CheckpointRefused: the stored one cannot be loaded, or chunks do not fit into a new one.
    """
    from vla_rl.policy.expert import fresh_weights
    from vla_rl.policy.expert_files import load_expert, new_expert
    from vla_rl.policy.flow_config import ExpertSizes

    if start.expert:
        expert = load_expert(policy)
        if fresh:
            fresh_weights(expert, seed=seed)
        return expert
    if width % HEAD_WIDTH:
        raise _refused(
            f"an expert {width} wide does not divide into heads {HEAD_WIDTH} wide", "sft.expert_width", "use 96"
        )
    sizes = ExpertSizes(width, width // HEAD_WIDTH, mlp_ratio=4.0, mlp_multiple=HEAD_WIDTH, time_features=64)
    return new_expert(policy, sizes, seed)


def _refused(what: str, where: str, remedy: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=remedy)
