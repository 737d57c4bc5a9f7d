"""Named random streams, the registry of seed bands and that of burned seeds.

In: a purpose and integer keys, or seed text such as ``"0-99,300"``. Out: independent `numpy` generators and checked
seed tuples. Two purposes never share a stream, and two uses never share a band; what a stream is used for is not
decided here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_rl.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

# A mistyped range must not fill the memory before its band is looked at.
MAX_SEED, MAX_SEEDS = 2**31 - 1, 1_000_000


def stream(purpose: str, *key: int) -> np.random.Generator:
    """A generator that depends on nothing but `purpose` and `key`.

    The purpose is hashed (BLAKE2b, 16 bytes) into the entropy, so streams of different purposes are independent even
    when their integer keys coincide: a boat's colour can carry no information about its position.

    Args:
        purpose: e.g. ``"token"``, ``"appearance"``, ``"demo-noise"``.
        key: non-negative integers, e.g. (run seed, draw, environment seed, replan).
    """
    import numpy as np  # bands are looked up by commands that draw nothing

    words = np.frombuffer(hashlib.blake2b(purpose.encode(), digest_size=16).digest(), dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*map(int, words), *map(int, key)])))


def parse_seeds(text: str | int) -> tuple[int, ...]:
    """``"0-3,10"`` -> ``(0, 1, 2, 3, 10)``; inclusive ranges, order kept.

    Raises:
        ConfigError: on anything else, an empty list, a descending range, a seed given twice, above `MAX_SEED`, or more
            than `MAX_SEEDS` of them.
    """
    seeds: list[int] = []
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ConfigError(
                f"{part.strip()!r} is no seed and no range of seeds",
                where=f"seed text {str(text)!r}",
                remedy="write seeds as 0-99 or 300,301 or a mix of both",
            )
        stop = int(last) if dash else int(first)
        if stop < int(first):
            raise ConfigError(f"the range {part.strip()} runs backwards", where=f"seed text {str(text)!r}")
        count = stop + 1 - int(first)
        if stop > MAX_SEED or len(seeds) + count > MAX_SEEDS:
            raise ConfigError(
                f"{part.strip()} goes beyond the largest seed or makes more than {MAX_SEEDS:,} seeds",
                where=f"seed text {str(text)!r}",
                remedy=f"name at most {MAX_SEEDS:,} seeds, none above {MAX_SEED}",
            )
        seeds.extend(range(int(first), stop + 1))
    repeated = [seed for seed, times in Counter(seeds).items() if times > 1]
    if repeated:
        raise ConfigError(f"seed {min(repeated)} is listed twice", where=f"seed text {str(text)!r}")
    return tuple(seeds)


def _is_number(text: str) -> bool:
    """Plain digits; `str.isdigit` alone also takes superscripts, which `int` cannot read."""
    return text.isascii() and text.isdigit()


def format_seeds(seeds: Sequence[int]) -> str:
    """The inverse of `parse_seeds`: runs of consecutive seeds become ranges."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(seeds) + 1):
        if i == len(seeds) or seeds[i] != seeds[i - 1] + 1:
            first, last = seeds[start], seeds[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = i
    return ",".join(parts)


@dataclass(frozen=True)
class Band:
    """A range of environment seeds and the uses that it is open to: `eval`, `train`, `demos`, and `watch`
    (evaluation that steers a training run, and so uses its seeds up)."""

    first: int
    last: int
    uses: frozenset[str]
    purpose: str


BANDS: tuple[Band, ...] = (
    Band(0, 99, frozenset({"eval"}), "sim100, the documented held-out set"),
    Band(200, 219, frozenset({"eval", "watch"}), "monitor in the loop"),
    Band(300, 399, frozenset({"eval", "watch"}), "development: choosing a base, quickstart, benchmarks, tests"),
    Band(500, 599, frozenset({"eval", "watch", "train"}), "probes and preflights of our own"),
    Band(1000, 2999, frozenset({"eval", "watch", "train", "demos"}), "the documented experiments"),
    Band(10000, 10999, frozenset({"eval"}), "confirmatory reads of our own registrations"),
    Band(100000, 199999, frozenset({"demos"}), "demonstrations"),
    Band(200000, 599999, frozenset({"train"}), "GRPO training streams"),
    Band(700000, MAX_SEED, frozenset({"eval"}), "outside evaluation"),
)


USES = {"watch": "evaluation during training"}  # where a use is not called by its own name


@dataclass(frozen=True)
class Burned:
    """Environment seeds that something was already decided on: a result on them confirms nothing.

    Attributes:
        first, last: the range, inclusive.
        spawns: under which spawns; a seed of another spawn is another initial state.
        decided: what.
    """

    first: int
    last: int
    spawns: frozenset[str]
    decided: str


_V1, _BOTH = frozenset({"v1"}), frozenset({"v1", "v2"})
BURNED: tuple[Burned, ...] = (
    Burned(200, 219, _BOTH, "watched during training, feeds the wires"),
    Burned(300, 399, _BOTH, "the choice of the bundled base, the scripted expert, ablations of servo, home and timing"),
    Burned(500, 599, _BOTH, "probes and preflights"),
    Burned(1000, 2999, _V1, "tuning, gates and training of the documented experiments"),
    Burned(100000, 599999, _BOTH, "demonstrations and training streams"),
)


def burned_seeds(protocol: str) -> tuple[Burned, ...]:
    """The seeds that a confirmatory read under a protocol must not use, with what was decided on them.

    They are the same for every protocol with the same spawn: servo, timing and horizon change what happens on a seed,
    but not which state it is. Whoever tunes anything on further seeds adds them to `BURNED` in the same commit. What a
    registered read has opened is not kept here but in that registration's ledger.

    Args:
        protocol: a protocol's id, e.g. ``"sim100b-spawn2"``.
    """
    spawn = "v2" if "spawn2" in protocol.split("-") else "v1"
    return tuple(burned for burned in BURNED if spawn in burned.spawns)


def check_fresh(seeds: Iterable[int], protocol: str, *, where: str) -> None:
    """Refuse to confirm anything on burned seeds. For confirmatory reads of registrations; development may reuse seeds.

    Args:
        seeds: environment seeds of the read.
        protocol: a protocol's id.
        where: the configuration key that named the seeds.

    Raises:
        ConfigError: naming the first burned seed and what was decided on it.
    """
    burned = burned_seeds(protocol)
    for seed in seeds:
        if hit := next((b for b in burned if b.first <= seed <= b.last), None):
            raise ConfigError(
                f"seed {seed} can confirm nothing: {hit.first}-{hit.last} served {hit.decided}",
                where=where,
                remedy="seeds that nothing was decided on, such as 10000-10999",
            )


def check_use(seeds: Iterable[int], use: str, *, where: str) -> None:
    """Refuse seeds whose band is not open to `use`.

    Args:
        seeds: environment seeds.
        use: ``"train"``, ``"eval"``, ``"watch"`` or ``"demos"``.
        where: the configuration key that named them.

    Raises:
        ConfigError: naming the first offending seed, its band and the bands that are open to this use.
    """
    for seed in seeds:
        if not is_open(seed, use):
            band = next((b for b in BANDS if b.first <= seed <= b.last), None)
            reserved = f"reserved for: {band.purpose}" if band else "in no registered band"
            open_bands = ", ".join(f"{b.first}-{b.last}" for b in BANDS if use in b.uses)
            raise ConfigError(
                f"seed {seed} may not be used for {USES.get(use, use)}; it is {reserved}",
                where=where,
                remedy=f"seeds open to {USES.get(use, use)}: {open_bands}",
            )


def is_open(seed: int, use: str) -> bool:
    """Whether the band of a seed is open to `use`."""
    return any(band.first <= seed <= band.last and use in band.uses for band in BANDS)


def check_disjoint(
    train: Iterable[int], held_out: Iterable[int], *, where: str = "geometry.train_seed_base and eval.seeds"
) -> None:
    """Refuse a run that would train on a state it is evaluated on.

    Args:
        where: the configuration keys that named the two.

    Raises:
        ConfigError: naming the shared seeds.
    """
    shared = sorted(set(train) & set(held_out))
    if shared:
        raise ConfigError(
            f"{len(shared)} seeds are both trained on and held out: {format_seeds(shared)}",
            where=where,
            remedy="move one of the two bands",
        )
