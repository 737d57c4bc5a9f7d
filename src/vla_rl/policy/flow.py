"""Flow matching on action chunks: what the expert sees of a prompt, the training loss, and the way from noise to data.

In: pictures, state bins and chunks in normalised units. Out: a loss a row, or chunks. A chunk x and noise e make
``x_t = (1 - t) e + t x``, and the expert is trained to say ``x - e`` (Lipman et al., 2023, arXiv:2210.02747), at times
that lean towards the noise; a sample follows what it says from t = 0 to 1 in equal Euler steps. Joints beyond the
robot's are zero in the noise, at every step and in every chunk, and do not count in the loss.

The expert sees the prompt up to and with ``<action_output>``, without the ends of turns (the release drops their id,
which is also its first token). What follows, ``<action_start>`` and the action tokens of a teacher-forced pass, is cut
off before the expert is asked, so no attention mask has to keep it away.

Noise keyed by row is in `vla_rl.policy.noise`, serving in `vla_rl.policy.flow_sampler`.

Shapes: B rows, C cameras, J joints, T ticks, A action width, P prompt tokens, L tokens, S tokens seen by the expert, K
width of the trunk's keys over all heads, G key-value heads, V bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vla_rl.errors import ConfigError
from vla_rl.policy.expert import ActionExpert, Context, KeyValues
from vla_rl.policy.flow_config import FlowConfig
from vla_rl.policy.tokenizer import TURN_END
from vla_rl.policy.trunk import block_logits, prompt_embeddings, text_stack

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


@dataclass(frozen=True)
class Draws:
    """What is random in a loss.

    Attributes:
        time_B: float32, when each row is looked at.
        noise_BTA: float32, what its chunk is mixed with.
    """

    time_B: Tensor
    noise_BTA: Tensor

    @classmethod
    def of(cls, config: FlowConfig, generators: Iterable[np.random.Generator], ticks: int, device: str) -> Draws:
        """A generator a row: first its time by the config's law, then its noise; drawn on the host, so alike on every
        device, and a row's draws depend on no other row."""
        drawn = [
            (config.time.draw(each, 1), each.standard_normal((ticks, config.max_dim), dtype=np.float32))
            for each in generators
        ]
        times, noise = zip(*drawn, strict=True)
        return cls(torch.from_numpy(np.concatenate(times)).to(device), torch.from_numpy(np.stack(noise)).to(device))


class _Kept:
    """Answers the call that transformers' attention makes of a cache, and keeps what it is given."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        assert layer == len(self.layers), "layers come in order"
        self.layers.append((keys, values))
        return keys, values

    def seen(self, positions_S: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of every layer keys and values [B, S, K] at some positions, heads side by side."""

        def picked(part_BGLE: Tensor) -> Tensor:
            return part_BGLE.index_select(2, positions_S).transpose(1, 2).flatten(2)

        return [(picked(keys), picked(values)) for keys, values in self.layers]


def seen_positions(policy: VlaPolicy) -> Tensor:
    """Positions in the prompt that the expert attends to, int64 [S]."""
    template_P = policy.prompt.template_P[:-1]  # the last token is <action_start>
    return (template_P != policy.tokenizer.token_to_id(TURN_END)).nonzero().squeeze(1)


def prompt_keys_values(
    policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, *, seen_S: Tensor | None = None
) -> KeyValues:
    """What the expert sees of some prompts; differentiable.

    Args:
        frames: uint8 [B, C, height, width, 3].
        state_bins_BJ: integer [B, J].
        seen_S: `seen_positions`, where they are known already: they cannot be found in a compiled pass.
    """
    embedded = prompt_embeddings(policy.model, policy.prompt, frames, state_bins_BJ)
    kept = _Kept()
    text_stack(policy.model, policy.prompt, embedded[:, :-1], kept)
    return kept.seen(seen_positions(policy) if seen_S is None else seen_S)


def logits_and_keys_values(
    policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor, *, seen_S: Tensor | None = None
) -> tuple[Tensor, KeyValues]:
    """One pass of the trunk for both heads: what `VlaPolicy.logits` and what `prompt_keys_values` gives.

    Args:
        frames: uint8 [B, C, height, width, 3].
        state_bins_BJ: integer [B, J].
        bins_BT: integer [B, T]; the last column is predicted but not fed. The expert sees none of them.
        seen_S: as of `prompt_keys_values`.
    """
    model, prompt = policy.model, policy.prompt
    embedded = prompt_embeddings(model, prompt, frames, state_bins_BJ)
    fed = model.model.language_model.embed_tokens(bins_BT[:, :-1].long() + prompt.ids.action_block)
    kept = _Kept()
    hidden = text_stack(model, prompt, torch.cat([embedded, fed.to(embedded.dtype)], dim=1), kept)
    logits = block_logits(model, hidden[:, prompt.length - 1 :], prompt.ids.action_block, policy.vocabulary)
    return logits, kept.seen(seen_positions(policy) if seen_S is None else seen_S)


def insulated(keys_values: KeyValues) -> KeyValues:
    """The same numbers, through which no gradient reaches the trunk."""
    return [(keys.detach(), values.detach()) for keys, values in keys_values]


def flow_loss(
    policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, actions_BTJ: Tensor, draws: Draws, *, insulate: bool
) -> Tensor:
    """`velocity_loss` of demonstrated chunks under a policy's expert, float32 [B].

    Args:
        frames: uint8 [B, C, height, width, 3].
        state_bins_BJ: integer [B, J].
        actions_BTJ: normalised and clamped, as the action table makes them.
        draws: times and noise.
        insulate: train the expert alone; the trunk gets no gradient.

    Raises:
        ConfigError: the policy's expert is not loaded.
    """
    expert = own_expert(policy)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not insulate):
        keys_values = prompt_keys_values(policy, frames, state_bins_BJ)
    return velocity_loss(expert, expert.context(keys_values), actions_BTJ, draws)


def velocity_loss(expert: ActionExpert, context: Context, actions_BTJ: Tensor, draws: Draws) -> Tensor:
    """Mean squared error of the velocity over the ticks and the robot's own joints of each row, [B], in the expert's
    number format; differentiable.

    Every tick counts, also those at an episode's end that repeat its last target: they are how it holds still.

    Args:
        context: `ActionExpert.context` of the rows' prompts.
        actions_BTJ: chunks in normalised units.
        draws: times and noise of the rows.
    """
    joints, width, dtype = actions_BTJ.shape[-1], expert.config.max_dim, expert.dtype
    actions, noise = pad(actions_BTJ.to(dtype), (0, width - joints)), only_joints(draws.noise_BTA.to(dtype), joints)
    time_B11 = draws.time_B.to(dtype)[:, None, None]
    said = expert((1 - time_B11) * noise + time_B11 * actions, draws.time_B, context)
    return (said - (actions - noise))[..., :joints].square().mean((1, 2))


@torch.no_grad()
def integrate(expert: ActionExpert, context: Context, noise_BTA: Tensor, joints: int) -> Tensor:
    """Chunks [B, T, joints] in normalised units, not clamped: `FlowConfig.steps` Euler steps from noise at t = 0, the
    last of which is taken at t = 1 - 1 / steps.

    Args:
        context: `ActionExpert.context` of the rows' prompts.
        noise_BTA: standard normal.
        joints: of the robot.
    """
    steps = expert.config.steps
    time_N = torch.tensor([step / steps for step in range(steps)], device=noise_BTA.device)
    modulations = expert.modulations(time_N)
    chunk = only_joints(noise_BTA.to(expert.dtype), joints)
    for step in range(steps):
        velocity = expert.velocity(chunk, modulations.at(step), context)
        chunk = chunk + (1.0 / steps) * only_joints(velocity, joints)
    return chunk[..., :joints]


def only_joints(chunk_BTA: Tensor, joints: int) -> Tensor:
    """The same with zeros beyond the robot's joints."""
    return pad(chunk_BTA[..., :joints], (0, chunk_BTA.shape[-1] - joints))


def own_expert(policy: VlaPolicy) -> ActionExpert:
    """The policy's expert.

    Raises:
        ConfigError: it is not loaded.
    """
    if policy.expert is None:
        raise ConfigError(
            "the policy's action expert is not loaded",
            where="policy.serve_head",
            remedy="load it with policy.serve_head=flow or load_expert, or make one with new_expert",
        )
    return policy.expert
