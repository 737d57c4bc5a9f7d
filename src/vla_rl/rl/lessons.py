"""Which rows of a wave teach, what each token of them weighs, and in which batches they are read.

In: replay rows and the advantage of each episode. Out: lessons and the wave's normaliser. Rows of dropped groups and
rows with advantage 0 are skipped: their gradient is exactly 0 (unless a KL term or a bonus gives them one). Lessons are
ordered by token length, which changes the padding but not the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vla_rl.rl.loss import episode_weights, normaliser
from vla_rl.rollout.records import EpisodeSpec, Row


@dataclass(frozen=True)
class Lesson:
    """A row with the advantage and the token weight of its episode."""

    row: Row
    advantage: float
    weight: float


def select_lessons(
    rows: Sequence[Row],
    advantages: Mapping[EpisodeSpec, float | tuple[float, ...]],
    *,
    weighting: str,
    episode_tokens: int,
    idle_rows: bool = False,
) -> tuple[list[Lesson], float]:
    """The rows that teach something, by token length then key, and the normaliser of the wave.

    Args:
        rows: rows of the wave, any order.
        advantages: of each episode of a kept group, or of each of its replans; other episodes are absent.
        weighting, episode_tokens: see `loss.episode_weights` and `loss.normaliser`.
        idle_rows: take rows with advantage 0 too, because a term without advantage acts on them.

    Returns:
        lessons, and what the loss is divided by. Rows with advantage 0 count there in any case, because their gradient
        is part of the mean.
    """
    tokens: dict[EpisodeSpec, int] = {}
    for row in rows:
        if row.spec in advantages:
            tokens[row.spec] = tokens.get(row.spec, 0) + len(row.bins)
    weights = dict(zip(tokens, episode_weights(list(tokens.values()), weighting), strict=True))

    def advantage(row: Row) -> float:
        value = advantages[row.spec]
        return value[row.replan] if isinstance(value, tuple) else value

    taught = [Lesson(row, advantage(row), weights[row.spec]) for row in rows if row.spec in advantages]
    lessons = [lesson for lesson in taught if idle_rows or lesson.advantage != 0.0]
    lessons.sort(key=lambda x: (len(x.row.bins), x.row.spec.seed, x.row.spec.draw, x.row.replan))
    return lessons, normaliser(list(tokens.values()), weighting, episode_tokens)


@dataclass(frozen=True)
class BatchLimits:
    """What goes through the network at once.

    Attributes:
        rows: most rows.
        tokens: most tokens, prompts and padding included; a row that is longer by itself goes alone. None: no limit.
    """

    rows: int
    tokens: int | None = None

    def halved(self) -> BatchLimits:
        """Half of it, at least one row."""
        return BatchLimits(max(1, self.rows // 2), None if self.tokens is None else max(1, self.tokens // 2))


def micro_batches(lengths: Sequence[int], limits: BatchLimits, prompt_tokens: int) -> Iterator[slice]:
    """Streams of these lengths, in the given order, in batches within the limits.

    Args:
        lengths: tokens of each stream.
        prompt_tokens: tokens of a prompt.
    """
    start, longest = 0, 0
    for end, length in enumerate(lengths):
        grown, size = max(longest, length), end + 1 - start
        full = size > limits.rows or (limits.tokens is not None and size * (prompt_tokens + grown) > limits.tokens)
        if full and end > start:
            yield slice(start, end)
            start, grown = end, length
        longest = grown
    if lengths:
        yield slice(start, len(lengths))
