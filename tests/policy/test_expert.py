"""The action expert and its flow: the release's names and arithmetic, what the constants mean, loss and integration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from expert_support import SIZES, keys_values, released_velocity, small_expert
from policy_support import MINI, TASK
from release_support import EXPERT_WIDTH, LAYERS, expert_weights, release_config
from torch.func import functional_call

from vla_rl.errors import ConfigError
from vla_rl.policy import flow
from vla_rl.policy.expert import ActionExpert, fresh_weights
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.flow import Draws, flow_loss, integrate, velocity_loss
from vla_rl.policy.flow_config import FlowConfig, TimeLaw
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import Observation
from vla_rl.policy.refusals import UnsupportedFeature
from vla_rl.policy.tokenizer import TURN_END, build_tokenizer
from vla_rl.seeds import stream


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    return release_config(build_tokenizer(TASK, 512))


def draws(config: FlowConfig, rows: int, ticks: int, seed: int = 0) -> Draws:
    return Draws.of(config, [np.random.default_rng([seed, row]) for row in range(rows)], ticks, "cpu")


# ---------------------------------------------------------------------------------------------------------- network
def test_names_and_shapes_are_those_of_a_released_expert(raw):
    expert = ActionExpert(FlowConfig.of(raw), key_width=32)
    own = {f"model.action_expert.{name}": tuple(weight.shape) for name, weight in expert.state_dict().items()}
    assert own == {name: tuple(weight.shape) for name, weight in expert_weights().items()}


def test_the_released_expert_has_the_published_number_of_tensors_and_weights():
    own = {"hidden_size": 768, "num_layers": 36, "num_heads": 8, "mlp_ratio": 4.0}
    with torch.device("meta"):
        expert = ActionExpert(FlowConfig.of({"action_expert_config": own}), key_width=1024)
    weights = expert.state_dict().values()
    assert len(weights) == 588 and sum(weight.numel() for weight in weights) == 577_564_448


def test_velocities_are_those_of_the_released_arithmetic_with_its_mask():
    expert, shown = small_expert().double(), np.array([False, True, True, False, True, True, False])
    generator = np.random.default_rng(4)
    chunks, times = generator.standard_normal((3, 6, 5)), np.array([0.0, 0.37, 1.0])
    seen = keys_values(3, 7, dtype=torch.float64)
    kept = [tuple(part[:, shown] for part in layer) for layer in seen]
    with torch.no_grad():
        said = expert(torch.from_numpy(chunks), torch.from_numpy(times), expert.context(kept))  # type: ignore[arg-type]
    weights = {name: weight.numpy() for name, weight in expert.state_dict().items()}
    for row in range(3):
        of_row = [tuple(part[row].numpy() for part in layer) for layer in seen]
        wanted = released_velocity(weights, chunks[row], times[row], of_row, shown, heads=2)  # type: ignore[arg-type]
        # Rotation tables are float32, as in the release.
        assert np.abs(said[row].numpy() - wanted).max() < 1e-7 and np.abs(wanted).max() > 0.1


def test_an_expert_that_has_learned_nothing_says_zero_everywhere_and_depends_on_its_seed_alone():
    experts = [ActionExpert(FlowConfig(SIZES, 2), 6) for _ in range(3)]
    for expert, seed in zip(experts, (0, 0, 1), strict=True):
        torch.manual_seed(seed + 11)
        fresh_weights(expert, seed=seed)
    states = [expert.state_dict() for expert in experts]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["action_embed.weight"], states[2]["action_embed.weight"])
    drawn = draws(experts[0].config, 2, 30)
    said = experts[0](drawn.noise_BTA, drawn.time_B, experts[0].context(keys_values(2, 4)))
    assert said.shape == (2, 30, 32) and not said.any()


def test_each_layer_of_the_trunk_and_every_shown_token_matters_and_rows_do_not_mix():
    expert, drawn = small_expert(), Draws(torch.tensor([0.2, 0.6]), torch.randn(2, 6, 5, generator=torch.Generator()))
    seen = keys_values(2, 4)
    with torch.no_grad():
        before = expert(drawn.noise_BTA, drawn.time_B, expert.context(seen))
        for layer in range(2):
            for part in range(2):
                for token in range(4):
                    changed = [[each.clone() for each in pair] for pair in seen]
                    changed[layer][part][1, token] += 1.0
                    after = expert(drawn.noise_BTA, drawn.time_B, expert.context(changed))  # type: ignore[arg-type]
                    assert torch.equal(after[0], before[0]) and not torch.equal(after[1], before[1])


# ---------------------------------------------------------------------------------------------------- configuration
def test_a_configuration_reads_back_what_it_writes(raw):
    config = FlowConfig.of(raw)
    assert (config.sizes.width, config.layers, config.sizes.mlp) == (EXPERT_WIDTH, LAYERS, 4 * EXPERT_WIDTH)
    assert (config.max_dim, config.max_horizon, config.steps) == (32, 30, 10)
    assert config.time == TimeLaw(0.001, 1.0, 1.0, 1.5)
    other = replace(config, steps=4, max_dim=8, time=TimeLaw(0.25, 0.75, 2.0, 3.0))
    assert FlowConfig.of(config.body()) == config and FlowConfig.of(other.body()) == other


def test_an_absent_key_has_the_default_of_the_release():
    sizes = FlowConfig.of({"action_expert_config": {}}).sizes
    assert (sizes.width, sizes.heads, sizes.mlp, sizes.time_features) == (1024, 16, 2816, 256)
    assert FlowConfig.of({"text_config": {"num_hidden_layers": 7}}).layers == 7


def test_times_end_at_the_cutoff():
    cut = FlowConfig.of({"action_expert_config": {}, "flow_matching_cutoff": 0.5}).time
    assert (cut.low, cut.high) == (0.001, 0.5)


UNSUPPORTED = [
    ("action_expert_config", key, value)
    for key, value in (
        ("causal_attn", True), ("rope", False), ("qk_norm", False), ("context_layer_norm", False), ("dropout", 0.1),
        ("attn_dropout", 0.1), ("cross_gate", 0.5), ("num_heads", 3), ("timestep_embed_dim", 15), ("hidden_size", "16"),
        ("num_layers", 1.5), ("mlp_ratio", 0),
    )
] + [
    ("", key, value)
    for key, value in (
        ("action_expert_depth_gate", True), ("action_expert_depth_gate_per_layer", True),
        ("enable_depth_reasoning", True), ("mask_action_dim_padding", False), ("flow_matching_num_steps", 0),
        ("flow_matching_cutoff", 0.0005), ("flow_matching_beta_alpha", None), ("action_expert_config", [1]),
    )
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "value"), UNSUPPORTED, ids=lambda part: str(part))
def test_what_is_not_built_is_refused_by_the_name_of_its_key(raw, section: str, key: str, value: Any):
    body = {**raw, section: {**raw[section], key: value}} if section else {**raw, key: value}
    with pytest.raises(UnsupportedFeature, match=key):
        FlowConfig.of(body)


def test_training_times_follow_the_law_and_lean_towards_the_noise():
    law = TimeLaw(0.001, 1.0, 1.0, 1.5)
    times = law.draw(np.random.default_rng(0), 200_000)
    assert times.dtype == np.float32 and times.min() >= 0.001 and times.max() <= 1.0
    # Of Beta(1, 1.5): mean 0.4, and 1 - 0.5 ** 1.5 of it lies below one half.
    assert times.mean() == pytest.approx(0.001 + 0.999 * 0.4, abs=2e-3)
    assert ((times - 0.001) / 0.999 < 0.5).mean() == pytest.approx(1 - 0.5**1.5, abs=4e-3)


# ------------------------------------------------------------------------------------------------ loss and integration
def constant(velocity: list[float]) -> ActionExpert:
    """An expert that says one velocity always: nothing learned but the bias of its last layer."""
    expert = ActionExpert(FlowConfig(SIZES, 2, max_dim=len(velocity), max_horizon=8), 6)
    fresh_weights(expert, seed=0)
    with torch.no_grad():
        expert.final_layer.linear.bias.copy_(torch.tensor(velocity))
    return expert


def test_a_loss_worked_out_by_hand():
    expert = constant([0.5, -1.0, 100.0])
    actions = torch.tensor([[[0.5, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    noise = torch.tensor([[[0.5, 1.0, 9.0], [0.0, 0.0, 9.0]], [[-0.5, 1.0, 9.0], [-0.5, 1.0, 9.0]]])
    # Row 0: x - e is (0, -1), (1, -1); said (0.5, -1): errors 0.5, 0, -0.5, 0. Row 1: x - e is what is said.
    loss = velocity_loss(expert, expert.context(keys_values(2, 3)), actions, Draws(torch.tensor([0.3, 1.0]), noise))
    assert loss.dtype == torch.float32 and loss.tolist() == [0.125, 0.0]


def test_a_sample_worked_out_by_hand():
    expert = constant([0.5, -1.0, 100.0])
    noise = torch.tensor([[[0.25, 2.0, 9.0], [-1.0, 0.0, -9.0]]])
    chunk = integrate(expert, expert.context(keys_values(1, 3)), noise, joints=2)
    assert torch.allclose(chunk, torch.tensor([[[0.75, 1.0], [-0.5, -1.0]]]), atol=1e-6) and chunk.shape == (1, 2, 2)


def test_steps_are_taken_at_their_left_ends_with_zeros_beyond_the_robots_joints():
    expert, noise = small_expert(), torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
    context = expert.context(keys_values(2, 4))
    with torch.no_grad():
        x = noise.clone()
        x[..., 3:] = 0
        for step in range(10):
            velocity = expert(x, torch.full((2,), step / 10), context)
            velocity[..., 3:] = 0
            x = x + 0.1 * velocity
    assert torch.allclose(integrate(expert, context, noise, joints=3), x[..., :3], atol=1e-6)
    loud = torch.cat([noise[..., :3], noise[..., 3:] * 50 + 7], dim=-1)
    assert torch.equal(integrate(expert, context, loud, joints=3), integrate(expert, context, noise, joints=3))


def test_a_loss_looks_at_the_mixture_of_its_time_and_not_beyond_the_robots_joints():
    expert, drawn = small_expert(), draws(FlowConfig(SIZES, 2, max_dim=5), 3, 6)
    actions = torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    context = expert.context(keys_values(3, 4))
    full = torch.cat([actions, torch.zeros(3, 6, 3)], dim=-1)
    noise = drawn.noise_BTA.clone()
    noise[..., 2:] = 0
    t = drawn.time_B[:, None, None]
    said = expert((1 - t) * noise + t * full, drawn.time_B, context)
    wanted = ((said - (full - noise)) ** 2)[..., :2].mean((1, 2))
    assert torch.allclose(velocity_loss(expert, context, actions, drawn), wanted, rtol=1e-6)
    loud = Draws(drawn.time_B, torch.cat([drawn.noise_BTA[..., :2], drawn.noise_BTA[..., 2:] + 40], dim=-1))
    assert torch.equal(velocity_loss(expert, context, actions, loud), velocity_loss(expert, context, actions, drawn))


def test_sampling_finds_the_data_that_a_loss_of_zero_describes():
    """Loss and sampler agree on which end is the data: where the loss is 0, the velocity leads to the chunk."""
    target, noise = torch.tensor([0.5, -0.25]), torch.tensor([1.5, 1.0])
    expert = constant((target - noise).tolist())
    context, rows = expert.context(keys_values(1, 3)), (1, 4, 1)
    drawn = Draws(torch.tensor([0.4]), noise.repeat(rows))
    assert velocity_loss(expert, context, target.repeat(rows), drawn).item() == 0
    assert torch.allclose(integrate(expert, context, noise.repeat(rows), joints=2), target.repeat(rows), atol=1e-6)


def test_gradients_of_the_loss_are_its_derivatives():
    sizes = replace(SIZES, width=4, heads=1, mlp_ratio=1.0, mlp_multiple=2, time_features=4)
    expert = small_expert(layers=1, key_width=2, max_dim=3, sizes=sizes).double()
    names, weights = zip(*sorted(expert.named_parameters()), strict=True)
    actions = torch.rand(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = draws(expert.config, 2, 3)
    exact = Draws(drawn.time_B.double(), drawn.noise_BTA.double())

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expert = expert

        def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return velocity_loss(self.expert, self.expert.context([(keys, values)]), actions, exact)

    seen = keys_values(2, 3, layers=1, width=2, dtype=torch.double)[0]
    module, inputs = Loss(), [part.requires_grad_() for part in seen]

    def loss(keys: torch.Tensor, values: torch.Tensor, *changed: torch.Tensor) -> torch.Tensor:
        own = {f"expert.{name}": weight for name, weight in zip(names, changed, strict=True)}
        return functional_call(module, own, (keys, values))

    assert torch.autograd.gradcheck(loss, (*inputs, *weights))


# ------------------------------------------------------------------------------------------------------ with the trunk
@pytest.fixture(scope="module")
def batch(flow_policy: VlaPolicy, observations: list[Observation]) -> tuple[torch.Tensor, ...]:
    actions = torch.rand(8, 30, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return flow_policy.frames_tensor(observations), flow_policy.state_tensor(observations), actions


def some_bins(policy: VlaPolicy, tokens: int, seed: int) -> torch.Tensor:
    return torch.randint(0, policy.vocabulary, (8, tokens), generator=torch.Generator().manual_seed(seed))


def test_the_expert_sees_the_prompt_without_ends_of_turns_and_without_the_start_of_the_answer(flow_policy):
    template, seen = flow_policy.prompt.template_P, flow.seen_positions(flow_policy).tolist()
    ends = flow_policy.tokenizer.token_to_id(TURN_END)
    assert template[0] == ends == flow_policy.model.config.eos_token_id
    assert template[-1] == flow_policy.prompt.ids.action_start
    hidden = sorted(set(range(len(template))) - set(seen))
    assert template[hidden].tolist() == [ends, ends, flow_policy.prompt.ids.action_start]
    assert template[seen[-1]] == flow_policy.tokenizer.token_to_id("<action_output>")


def test_the_expert_never_attends_to_action_tokens_whatever_they_are_and_however_many(flow_policy, batch):
    frames, states, actions = batch
    drawn, expert = draws(flow_policy.expert.config, 8, 30), flow_policy.expert
    with torch.no_grad():
        alone = flow.prompt_keys_values(flow_policy, frames, states)
        loss = flow_loss(flow_policy, frames, states, actions, drawn, insulate=False)
        noise = torch.randn(8, 30, 32, generator=torch.Generator().manual_seed(5))
        chunk = integrate(expert, expert.context(alone), noise, joints=6)
        for tokens, seed in ((1, 0), (9, 1), (9, 2), (30, 3)):
            bins = some_bins(flow_policy, tokens, seed)
            logits, seen = flow.logits_and_keys_values(flow_policy, frames, states, bins)
            assert torch.equal(logits, flow_policy.logits(frames, states, bins))
            context = expert.context(seen)
            assert torch.equal(velocity_loss(expert, context, actions, drawn), loss)
            assert torch.equal(integrate(expert, context, noise, joints=6), chunk)


def test_no_gradient_of_the_flow_reaches_an_action_token(flow_policy, batch):
    frames, states, actions = batch
    flow_policy.model.requires_grad_(True).zero_grad()
    bins = some_bins(flow_policy, 12, 0)
    _, seen = flow.logits_and_keys_values(flow_policy, frames, states, bins)
    expert = flow_policy.expert
    velocity_loss(expert, expert.context(seen), actions, draws(expert.config, 8, 30)).sum().backward()
    table = flow_policy.model.model.language_model.embed_tokens.weight.grad
    start, width = flow_policy.prompt.ids.action_block, flow_policy.vocabulary
    assert not table[start - 1 : start + width].any() and table[flow_policy.prompt.template_P[1:]].any()
    assert flow_policy.model.lm_head.weight.grad is None


@pytest.mark.parametrize("insulate", [True, False])
def test_an_insulated_loss_trains_the_expert_alone(flow_policy, batch, insulate: bool):
    flow_policy.model.requires_grad_(True).zero_grad()
    flow_policy.expert.zero_grad()
    drawn = draws(flow_policy.expert.config, 8, 30)
    loss = flow_loss(flow_policy, *batch, drawn, insulate=insulate)
    assert loss.shape == (8,) and loss.dtype == torch.float32
    loss.mean().backward()
    assert all(weight.grad.any() for weight in flow_policy.expert.parameters())
    reached = [w for w in flow_policy.model.parameters() if w.grad is not None and w.grad.any()]
    assert bool(reached) is not insulate
    _, seen = flow.logits_and_keys_values(flow_policy, batch[0], batch[1], some_bins(flow_policy, 4, 0))
    assert not any(part.requires_grad for layer in flow.insulated(seen) for part in layer)


def test_the_loss_of_a_row_is_the_same_in_any_batch(flow_policy, batch):
    drawn = draws(flow_policy.expert.config, 8, 30)
    with torch.no_grad():
        together = flow_loss(flow_policy, *batch, drawn, insulate=False)
        for rows in (slice(0, 1), slice(2, 5), slice(7, 8)):
            part = Draws(drawn.time_B[rows], drawn.noise_BTA[rows])
            alone = flow_loss(flow_policy, *(each[rows] for each in batch), part, insulate=False)
            assert torch.allclose(alone, together[rows], rtol=1e-5)


def test_draws_of_a_row_depend_on_its_own_stream_alone(flow_policy):
    config = flow_policy.expert.config

    def drawn(*keys: int) -> Draws:
        return Draws.of(config, (stream("test", key) for key in keys), 30, "cpu")

    whole, turned = drawn(1, 2, 3, 4), drawn(3, 1)
    assert whole.noise_BTA.shape == (4, 30, 32) and len(set(whole.time_B.tolist())) == 4
    assert torch.equal(turned.noise_BTA, whole.noise_BTA[[2, 0]]) and torch.equal(turned.time_B, whole.time_B[[2, 0]])


def test_a_few_updates_teach_a_new_expert(codec: FastCodec, stats: NormStats, observations: list[Observation]):
    policy = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    expert = new_expert(policy, replace(SIZES, width=32), seed=0)
    frames, states = policy.frames_tensor(observations[:2]), policy.state_tensor(observations[:2])
    actions = torch.stack([torch.full((30, 6), value) for value in (-0.6, 0.7)])
    optimizer = torch.optim.Adam(expert.parameters(), 5e-3)
    losses = []
    for step in range(150):
        drawn = Draws.of(expert.config, (stream("test", step, row) for row in range(2)), 30, "cpu")
        loss = flow_loss(policy, frames, states, actions, drawn, insulate=True).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.25 * np.mean(losses[:5])
    with torch.no_grad():
        context = expert.context(flow.prompt_keys_values(policy, frames, states))
    made = integrate(expert, context, torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(0)), joints=6)
    assert (made - actions).abs().mean() < 0.25


def test_a_policy_whose_expert_is_not_loaded_says_how_to_get_it(policy: VlaPolicy, batch):
    with pytest.raises(ConfigError, match=r"not loaded[\s\S]*serve_head=flow"):
        flow_loss(policy, *batch, draws(FlowConfig(SIZES, 2), 8, 30), insulate=True)
