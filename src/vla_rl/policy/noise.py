"""Keyed Gumbel noise for sampling: a row's noise depends on its own key and on nothing else.

In: one key per row (run seed, draw, environment seed, replan) and the kind of stream. Out: standard Gumbel noise
[R, V], token by token; ``argmax(masked log-probabilities + noise)`` is then a draw from the masked softmax. Neither
worker count, batch order, batch mates nor the point where a run was resumed enter. Four kinds:

- ``named``: this package's own, one named stream per row (`vla_rl.seeds.stream`), on the CPU.
- ``documented``: the recipe of the documented runs, on the CPU. The stream is seeded with BLAKE2b words of
  ``repo_id US seed US replan``, where the draw enters through the ``repo_id``, and every token consumes as many numbers
  as the vocabulary has output rows.
- ``documented_block``: the same with one number per bin of the action block, as the older documented program did.
- ``device``: counter-based and computed with integer operations where the policy runs, so that nothing crosses to the
  host. The 64-bit words are the same on every device, bit for bit. The noise made of them goes through double-precision
  logarithms and float32 rounding: of 4,194,304 numbers computed on a Xeon and on an H200, none differed.

The flow head starts from standard normal noise [R, T, A] with the same keys and kinds, from streams of its own: named
``flow``, or the documented recipe without its constant for token streams (both documented kinds are one here).

Logarithms are taken in double precision throughout: the single-precision form differs between processors.

Shapes: R rows, V bins of the action block, T ticks, A action width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.seeds import stream

RngKey = tuple[int, int, int, int]  # run seed, draw, environment seed, replan
Noise = Callable[[], Tensor]

KINDS = ("named", "documented", "documented_block", "device")
_BLOCK_NUMBERS = 2**14  # numbers a row draws at a time; the stream is the same for any block size
_DOMAIN = 0x41525344  # "ARSD" sets token streams apart from those of the flow head, which share the rest of the key
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def gumbel_noise(
    kind: str, keys: Sequence[RngKey], *, width: int, block_start: int, vocabulary: int, device: str
) -> Noise:
    """A function that returns the next token's noise, float32 [R, V], on `device`.

    Args:
        kind: one of `KINDS`.
        keys: one per row.
        width: bins of the action block, V.
        block_start: id of the first bin.
        vocabulary: ids that the network can predict.

    Raises:
        ConfigError: another kind.
    """
    check_kind(kind)
    if kind == "named":
        return _stream_noise([stream("token", *key) for key in keys], width, slice(0, width), device)
    if kind == "documented":
        block = slice(block_start, block_start + width)
        return _stream_noise([documented_stream(*key) for key in keys], vocabulary, block, device)
    if kind == "documented_block":
        return _stream_noise([documented_stream(*key) for key in keys], width, slice(0, width), device)
    return _device_noise(keys, width, device)


def flow_noise(kind: str, keys: Sequence[RngKey], *, ticks: int, width: int, device: str) -> Tensor:
    """Standard normal noise of some rows' chunks, float32 [R, T, A], on `device`.

    Args:
        kind: one of `KINDS`.
        keys: one per row.
        ticks, width: of a chunk; the width includes joints that the robot lacks.

    Raises:
        ConfigError: another kind.
    """
    check_kind(kind)
    if kind == "device":
        return _device_normal(keys, ticks, width, device)
    made = (lambda *key: stream("flow", *key)) if kind == "named" else documented_flow_stream
    drawn = [made(*key).standard_normal((ticks, width), dtype=np.float32) for key in keys]
    return torch.from_numpy(np.stack(drawn)).to(device)


def check_kind(kind: str) -> None:
    """Refuse what is not one of `KINDS`.

    Raises:
        ConfigError: listing them.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"there are no random keys {kind!r}", where="sampler.keys", remedy=f"use one of {', '.join(KINDS)}"
        )


def documented_stream(run_seed: int, draw: int, seed: int, replan: int) -> np.random.Generator:
    """The documented runs' generator of one replan's tokens; its own `draw` argument is always 0 there."""
    return sample_stream(run_seed, _documented_repo(draw), seed, replan, 0)


def documented_flow_stream(run_seed: int, draw: int, seed: int, replan: int) -> np.random.Generator:
    """The documented runs' generator of one replan's flow noise."""
    return _identified_stream([run_seed, 0], _documented_repo(draw), seed, replan)


def sample_stream(seed: int, repo_id: str, episode: int, frame: int, draw: int) -> np.random.Generator:
    """PCG64 keyed by a domain constant, the run's seed, a draw and 16 bytes of BLAKE2b over the frame's identity."""
    return _identified_stream([_DOMAIN, seed, draw], repo_id, episode, frame)


def _identified_stream(first: list[int], repo_id: str, episode: int, frame: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{repo_id}\x1f{episode}\x1f{frame}".encode(), digest_size=16).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*first, *words])))


def _documented_repo(draw: int) -> str:
    return "sim/eval100" if draw == 0 else f"sim/eval100/draw{draw:02d}"


def _stream_noise(generators: Sequence[np.random.Generator], numbers: int, columns: slice, device: str) -> Noise:
    """Noise from one generator a row, `numbers` a token, of which `columns` are used."""
    tokens = max(1, _BLOCK_NUMBERS // numbers)

    def blocks() -> Iterator[Tensor]:
        while True:
            waiting = np.stack(
                [g.standard_exponential((tokens, numbers), dtype=np.float32)[:, columns] for g in generators]
            )
            floored = np.maximum(waiting, np.finfo(np.float32).tiny).astype(np.float64)
            block = torch.from_numpy(-np.log(floored).astype(np.float32)).to(device)
            yield from block.unbind(1)

    drawn = blocks()
    return lambda: next(drawn)


def _device_noise(keys: Sequence[RngKey], width: int, device: str) -> Noise:
    """Noise from `counter_words`, a block of tokens at a time."""
    key_R2 = torch.tensor([_words("token", key) for key in keys], dtype=torch.int64, device=device)
    tokens = max(1, _BLOCK_NUMBERS // width)

    def blocks() -> Iterator[Tensor]:
        start = 0
        while True:
            counter = torch.arange(start, start + tokens * width, device=device)
            uniform = _uniform(counter_words(key_R2, counter))
            yield from (-(-uniform.log()).log()).float().unflatten(1, (tokens, width)).unbind(1)
            start += tokens * width

    drawn = blocks()
    return lambda: next(drawn)


def _device_normal(keys: Sequence[RngKey], ticks: int, width: int, device: str) -> Tensor:
    """Normal numbers from pairs of `counter_words` (Box and Muller)."""
    key_R2 = torch.tensor([_words("flow", key) for key in keys], dtype=torch.int64, device=device)
    radius, turn = _uniform(counter_words(key_R2, torch.arange(2 * ticks * width, device=device))).chunk(2, dim=1)
    normal = (-2.0 * radius.log()).sqrt() * (2.0 * math.pi * turn).cos()
    return normal.float().unflatten(1, (ticks, width))


def counter_words(key_R2: Tensor, counter_N: Tensor) -> Tensor:
    """64 random bits for every key and counter, int64 [R, N]: SplitMix64's mixer twice, with a key word before each.

    One mixer passes statistical batteries as a generator (Steele et al., 2014); the second takes a second key word so
    that rows whose first words are near each other do not run along one sequence.
    """
    first = _mix(key_R2[:, :1] + counter_N[None] * _signed(_GOLDEN))
    return _mix(first ^ key_R2[:, 1:])


def _words(purpose: str, key: RngKey) -> tuple[int, int]:
    """Two signed 64-bit words of a row's key."""
    text = "\x1f".join([purpose, *map(str, key)])
    first, second = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), dtype="<i8").tolist()
    return first, second


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(_MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _uniform(words: Tensor) -> Tensor:
    """The upper 52 bits as float64 in (0, 1), both ends excluded (with 53, the half would round some up to 1)."""
    return (_shifted(words, 12).double() + 0.5) * 2.0**-52


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
