"""What a run holds in memory: what a run itself holds, sums by hand, and a release on paper."""

import weakref

import pytest
import torch
from one_update import ADVANTAGES, TEMPERATURE, settings, state
from release_size import release_on_paper
from tiny_policy import tiny_policy, tiny_sampler
from toy_run import lora

from vla_rl.config.schema import OptimConfig
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.policy.sampler import GrammarSampler, PredictRequest
from vla_rl.rl import snapshot
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.drift import measure
from vla_rl.rl.forecast import update_row_seconds
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.memory import Kept, measured, memory_lines
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer

GIB = 2**30


def by_name(lines):
    return {line.name: line.bytes for line in lines}


def told_of(policy, parameters, rows, *, microbatch=2, loss=None, sampler=None, anchored=False, undoable=False):
    optimizer = build_optimizer(parameters, OptimConfig(), Full())
    observation = Observation(rows[0].frames, rows[0].state_deg)
    constants = settings(microbatch_rows=microbatch, loss=loss)
    activations, peak = measured(policy, parameters, optimizer, constants, TEMPERATURE, observation)
    kept = Kept(anchored=anchored, undoable=undoable)
    return by_name(
        memory_lines(policy, parameters, optimizer, sampler, kept, activations=activations, peak=peak)
    ), optimizer


def test_measuring_leaves_weights_gradients_and_moments_as_they_were(rows):
    policy = tiny_policy()
    parameters, before = Full().trainable(policy), state(policy)
    _, optimizer = told_of(policy, parameters, rows)
    update_row_seconds(policy, rows, settings(), TEMPERATURE, optimizer)
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())
    assert all(p.grad is None for _, p in parameters) and not any(optimizer.state.values())


def test_bytes_of_an_update_follow_from_the_parameters_and_the_micro_batch(rows):
    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    surface, held = (
        sum(p.nbytes for p in some) for some in ([p for _, p in parameters], [leaf_of(p) for _, p in parameters])
    )
    told, _ = told_of(policy, parameters, rows)
    assert told["gradients"] == held < surface < told["weights"]
    assert told["moments"] == 2 * held + 4 * len(parameters)  # and a step count each
    assert told["copies"] == 0 and told["peak"] is None
    twice, _ = told_of(policy, parameters, rows, microbatch=4)
    assert 1.8 < twice["activations"] / told["activations"] < 2.1
    kept, _ = told_of(policy, parameters, rows, anchored=True, undoable=True)
    assert kept["copies"] == 2 * surface + told["moments"]


@pytest.mark.parametrize("undoable", [False, True])
def test_copies_are_what_lies_beside_the_network_while_the_drift_is_measured(rows, undoable, monkeypatch):
    """Counted at every copy that the run itself makes, of those that are still alive then."""
    alive, most, real = weakref.WeakSet(), [0], snapshot._copied

    class Copy:
        def __init__(self, size):
            self.size = size

    def copied(value):
        copy = real(value)
        copy.counted = Copy(copy.numel() * copy.element_size())  # lives as long as the tensor does
        alive.add(copy.counted)
        most[0] = max(most[0], sum(one.size for one in alive))
        return copy

    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    told, optimizer = told_of(policy, parameters, rows, anchored=True, undoable=undoable)
    accumulated = settings()
    lessons, _ = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=700)
    accumulate_gradient(policy, lessons, 1.0, accumulated, TEMPERATURE, Fixed(None, None))
    optimizer.step()  # there are moments from now on
    monkeypatch.setattr(snapshot, "_copied", copied)
    anchor = Anchor.of(policy, parameters)
    before = snapshot.Snapshot(parameters, optimizer) if undoable else None
    measure(policy, anchor, rows[:2], temperature=TEMPERATURE, limits=accumulated.limits)
    assert most[0] == told["copies"] and (before is not None) is undoable


def test_only_an_adapter_needs_no_copy_as_its_anchor():
    policy = tiny_policy()
    assert Anchor.copies(policy, TextStack().trainable(policy))
    adapter = lora().trainable(policy)
    assert not Anchor.copies(policy, adapter)
    more = next(pair for pair in policy.model.named_parameters() if pair[0] not in dict(adapter))
    assert Anchor.copies(policy, [*adapter, more])


def test_activations_are_those_of_the_largest_micro_batch_and_not_of_all_together(rows):
    """A token limit splits the rows; each part's graph is gone before the next."""
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    one, _ = told_of(policy, parameters, rows, microbatch=1)
    optimizer = build_optimizer(parameters, OptimConfig(), Full())
    observation = Observation(rows[0].frames, rows[0].state_deg)
    split = settings(microbatch_rows=4, microbatch_tokens=1)
    activations, _ = measured(policy, parameters, optimizer, split, TEMPERATURE, observation)
    assert activations == pytest.approx(one["activations"], rel=0.1)


def test_an_anchored_objective_can_be_measured(rows):
    policy = tiny_policy()
    told, _ = told_of(policy, Full().trainable(policy), rows, loss={"kl_beta": 0.1}, anchored=True)
    assert told["activations"] > 0


def test_moments_are_those_that_an_optimiser_has_after_a_step(rows):
    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    told, optimizer = told_of(policy, parameters, rows)
    lessons, _ = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=700)
    accumulate_gradient(policy, lessons, 1.0, settings(), TEMPERATURE, Fixed(None, None))
    assert told["gradients"] == sum(leaf_of(p).grad.nbytes for _, p in parameters)
    optimizer.step()
    assert told["moments"] == sum(v.nbytes for fields in optimizer.state.values() for v in fields.values())


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_what_a_sampler_says_that_it_holds_it_holds(rows, dtype, monkeypatch):
    policy = tiny_policy()
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=3, dtype=dtype)
    told = sampler.held_bytes()
    assert sampler._decoder is None  # nothing was made for it
    sampler.sample([PredictRequest(Observation(rows[0].frames, rows[0].state_deg), 0, 0, 0)], 0.0)
    assert told["cache"] == sampler._decoder.nbytes
    copied = 0 if dtype is None else sum(p.nbytes for p in sampler._short.policy().model.parameters())
    assert told["short_copy"] == copied
    assert told["cache_kept"] == (told["cache"] if dtype is None else 0)
    monkeypatch.setattr("vla_rl.policy.sampler.HELD_BYTES", told["cache"] - 1)
    assert sampler.held_bytes()["cache_kept"] == 0


def test_sums_are_of_the_parts_that_are_there_at_a_time(rows):
    policy = tiny_policy()
    told, _ = told_of(policy, TextStack().trainable(policy), rows, sampler=tiny_sampler(policy))
    held = told["weights"] + told["rows"] + told["moments"]
    assert told["rollout"] == held + told["cache"] and told["short_copy"] == 0 < told["rows"]
    assert told["update"] == held + told["cache"] + told["gradients"] + told["activations"]
    assert told["step"] == held + told["cache"] + told["gradients"] + told["temporaries"]
    assert told["planned"] == max(told["rollout"], told["update"], told["step"])


def test_every_line_says_what_it_is_where_it_lies_and_how_it_was_counted(rows):
    policy = tiny_policy()
    kept = Kept(anchored=True, undoable=True)
    parameters = Full().trainable(policy)
    optimizer = build_optimizer(parameters, OptimConfig(), Full())
    lines = memory_lines(policy, parameters, optimizer, None, kept, activations=1, peak=None)
    names = [line.name for line in lines]
    assert len(set(names)) == len(names) and all(line.formula for line in lines)
    assert {line.where for line in lines if line.name in ("anchor", "undo", "copies")} == {"host"}
    sums = {
        line.name: line.formula.split(" + ") for line in lines if line.name in ("rollout", "update", "step", "copies")
    }
    assert all(set(parts) <= set(names) for parts in sums.values())
    for name, parts in sums.items():
        assert by_name(lines)[name] == sum(by_name(lines)[part] or 0 for part in parts)


# ------------------------------------------------------------------------------------------------- a release, on paper
LAYER = 2560 * (32 + 2 * 8) * 128 + 32 * 128 * 2560 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
HEAD, EMBEDDING = 155_648 * 2560, 155_662 * 2560  # the embedding has 14 picture tokens more


@pytest.fixture(scope="module")
def release():
    return release_on_paper()


def planned(policy, surface, *, rows=16, dtype="bfloat16", activations=GIB, **optim):
    sampler = GrammarSampler(batch_rows=rows, policy=policy, run_seed=0, dtype=dtype)
    kept = Kept(anchored=True, undoable=False)
    parameters = surface.trainable(policy)
    optimizer = build_optimizer(parameters, OptimConfig(**optim), surface)
    return by_name(memory_lines(policy, parameters, optimizer, sampler, kept, activations=activations, peak=None))


def test_the_text_stack_of_a_release_by_hand(release):
    told = planned(release, TextStack(), rows=128)
    reached = len({*release.prompt.template_P.tolist(), *release.adapter.fed_ids(release).tolist()})
    rows = (reached + 512) * 2560
    assert told["rows"] == 4 * rows and reached < 1000
    assert told["gradients"] == 4 * (36 * LAYER + 2560 + rows)
    assert told["moments"] == pytest.approx(2 * told["gradients"], rel=1e-6)
    assert told["anchor"] == 4 * (36 * LAYER + 2560 + HEAD + EMBEDDING)
    assert told["temporaries"] == 2 * 4 * 2560 * 9728
    tokens = -(-(release.prompt.length + release.grammar.total) // 8) * 8
    assert told["cache"] == 2 * 36 * 128 * 8 * tokens * 128 * 2
    assert told["short_copy"] == told["weights"] // 2


def test_a_release_fits_where_it_is_meant_to(release):
    """Activations with recomputed layers are below a GiB a row: 36 inputs and one layer of 604 tokens."""
    told = planned(release, TextStack(), rows=128)
    assert told["step"] < 60 * GIB and told["planned"] < 70 * GIB
    assert planned(release, PatchOnly())["planned"] < 30 * GIB
    hosted = planned(release, TextStack(), rows=128, moments="host")
    assert hosted["planned"] < 40 * GIB and hosted["host_moments"] == told["moments"]
    assert hosted["visiting"] == 2 * 4 * 2560 * 9728
