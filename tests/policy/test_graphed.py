"""Steps as a CUDA graph: the numbers of the fused ones, for its own weights and cache; otherwise it is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from policy_support import TASK

from vla_rl.policy.decode import DecodeCache, Decoder
from vla_rl.policy.graphed import StepGraph
from vla_rl.policy.policy import load_policy
from vla_rl.policy.stepweights import StepWeights


def test_steps_of_a_graph_equal_the_fused_ones_whatever_was_decoded_before(policy, observations):
    """The operations that a CUDA graph records, one by one: also after the weights have changed, from the prompt on."""
    decoder, graph = Decoder(policy, len(observations)), None
    bins = torch.randint(0, 165, (12, len(observations)), generator=torch.Generator().manual_seed(0))
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)
    norm = policy.model.model.language_model.norm.weight
    before = norm.detach().clone()
    try:
        for factor in (1.0, 0.5):
            with torch.no_grad():
                norm.copy_(before * factor)
                decoder.prefill(frames, state)
                fused = [decoder.step(chosen) for chosen in bins]
                decoder.prefill(frames, state)
                weights, cache = decoder._weights, decoder._cache
                assert weights is not None
                graph = graph or StepGraph(weights, cache, capture=False)
                assert graph.take(weights)
                graph.begin()
                for chosen, expected in zip(bins, fused, strict=True):
                    assert (graph.step(chosen) - expected).abs().max() < 1e-5
    finally:
        with torch.no_grad():
            norm.copy_(before)


@pytest.fixture
def after_a_prompt(policy, observations):
    """Weights and cache of a decoder that has read its prompts."""
    decoder = Decoder(policy, len(observations))
    with torch.no_grad():
        decoder.prefill(policy.frames_tensor(observations), policy.state_tensor(observations))
    return decoder._weights, decoder._cache


def test_attention_by_products_reads_what_torchs_kernel_reads(after_a_prompt):
    """What float32 takes on CUDA; later positions are masked."""
    weights, cache = after_a_prompt
    keys, values = cache.keys[0], cache.values[0]
    queries = torch.randn(len(keys), weights.heads, weights.width, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(1, 1, 1, keys.shape[2])
    seen[..., cache.position :] = float("-inf")
    expected = weights.read(queries, keys, values, seen)
    assert (weights.read_by_products(queries, keys, values, seen) - expected).abs().max() < 1e-5
    seen[..., cache.position - 1] = float("-inf")
    assert (weights.read_by_products(queries, keys, values, seen) - expected).abs().max() > 1e-5


def test_separate_projections_give_the_bits_of_fused_ones(policy, observations):
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)
    found = {}
    for fused in (True, False):
        decoder = Decoder(policy, len(observations))
        decoder._fused = fused
        with torch.no_grad():
            decoder.prefill(frames, state)
            found[fused] = torch.stack([decoder.step(torch.full((len(observations),), t)) for t in range(6)])
    assert torch.equal(found[True], found[False])


def test_a_graph_of_separate_weights_reads_them_where_they_are(after_a_prompt, policy):
    """They move between prompts, in place. Weights at another place are not taken."""
    _, cache = after_a_prompt
    first = policy.prompt.ids.action_block
    mlp, token = policy.model.model.language_model.layers[0].mlp, torch.full((cache.keys.shape[1],), 3)
    down = mlp.down_proj.weight
    before = down.detach().clone()

    def weights():
        columns = slice(first, first + policy.vocabulary)
        return StepWeights.of(policy, columns, length=cache.keys.shape[3], fused=False)

    try:
        with torch.no_grad():
            graph = StepGraph(weights(), cache, capture=False)
            unmoved = graph.step(token).clone()
            down *= 0.5
            assert graph.take(weights())
            graph.begin()
            moved = graph.step(token).clone()
            assert not torch.equal(moved, unmoved)
            assert torch.equal(StepGraph(weights(), cache, capture=False).step(token), moved)
            mlp.down_proj.weight = torch.nn.Parameter(down.clone())
            assert not graph.take(weights())
    finally:
        with torch.no_grad():
            mlp.down_proj.weight = down
            down.copy_(before)


class Stale(StepGraph):
    """A graph that does not see what it is fed."""

    def step(self, chosen_R):
        return super().step(chosen_R * 0)


class Failing(StepGraph):
    """A graph that cannot be captured."""

    def _capture(self):
        raise RuntimeError("operation not permitted when stream is capturing")


class Plain(StepGraph):
    """A graph that is right, on any device."""

    def _capture(self):
        pass


class Off(Stale, Plain):
    pass


@pytest.mark.parametrize(("graph", "says"), [(Failing, "could not be captured"), (Off, "of the largest off")])
def test_a_graph_that_cannot_be_captured_or_gives_something_else_is_given_up(after_a_prompt, graph, says):
    with pytest.warns(RuntimeWarning, match=says):
        assert graph.for_step(None, *after_a_prompt) is None


def test_a_graph_that_gives_what_its_operations_give_is_kept_for_its_cache(after_a_prompt):
    weights, cache = after_a_prompt
    graph = Plain.for_step(None, weights, cache)
    assert graph is not None and graph.apart() == 0.0
    assert Plain.for_step(graph, weights, cache) is graph
    other = DecodeCache(cache.keys.clone(), cache.values.clone())
    other.position = cache.position
    assert Plain.for_step(graph, weights, other) is not graph


def test_weights_with_another_scale_or_place_of_an_adapter_are_not_taken(after_a_prompt):
    weights, cache = after_a_prompt

    def adapted(scale, places):
        first, *others = weights.layers
        (gate_up,) = first.gate_up.weights
        outputs = gate_up.shape[0] // 2
        pair = (torch.ones(4, gate_up.shape[1]), torch.ones(outputs, 4), scale)
        adapters = tuple((outputs, pair if i in places else None) for i in range(2))
        changed = replace(first, gate_up=replace(first.gate_up, adapters=adapters))
        return replace(weights, layers=(changed, *others))

    graph = StepGraph(adapted(1.0, [0]), cache, capture=False)
    assert graph.take(adapted(1.0, [0]))
    assert not graph.take(adapted(2.0, [0])) and not graph.take(adapted(1.0, [1])) and not graph.take(weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_graph_gives_what_its_operations_give(observations):
    policy = load_policy(checkpoint="bundled:tiny_full", device="cuda", serve_head="ar", task=TASK)
    decoder = Decoder(policy, len(observations))
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)
    with torch.no_grad():
        for _ in range(2):
            decoder.prefill(frames, state)
            assert decoder._graph is not None and decoder._weights is not None
            captured = [decoder.step(torch.full((len(observations),), t, device="cuda")).clone() for t in range(8)]
            decoder.prefill(frames, state)
            plain = StepGraph(decoder._weights, decoder._cache, capture=False)
            for t, expected in enumerate(captured):
                step = plain.step(torch.full((len(observations),), t, device="cuda"))
                assert (step - expected).abs().max() < 1e-5
