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
    advantages: Mapping[EpisodeSpec, float],
    *,
    weighting: str,
    episode_tokens: int,
    idle_rows: bool = False,
) -> tuple[list[Lesson], float]:
    """The rows that teach something, by token length then key, and the normaliser of the wave.

    Args:
        rows: rows of the wave, any order.
        advantages: advantage of each episode of a kept group; other episodes are absent.
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
    lessons = [
        Lesson(row, advantages[row.spec], weights[row.spec])
        for row in rows
        if row.spec in advantages and (idle_rows or advantages[row.spec] != 0.0)
    ]
    lessons.sort(key=lambda x: (len(x.row.bins), x.row.spec.seed, x.row.spec.draw, x.row.replan))
    return lessons, normaliser(list(tokens.values()), weighting, episode_tokens)


def micro_batches(
    lessons: Sequence[Lesson], *, rows: int, tokens: int | None, prompt_tokens: int
) -> Iterator[Sequence[Lesson]]:
    """Lessons in the given order, in batches of at most `rows` rows and, if given, `tokens` tokens.

    Args:
        tokens: rows times the longest stream of the batch with its prompt; a row that is longer by itself is a batch.
        prompt_tokens: tokens of a prompt.
    """
    start = 0
    for end in range(1, len(lessons) + 1):
        if end == len(lessons):
            yield lessons[start:end]
            return
        size, longest = end + 1 - start, max(len(lesson.row.bins) for lesson in lessons[start : end + 1])
        if size > rows or (tokens is not None and size * (prompt_tokens + longest) > tokens):
            yield lessons[start:end]
            start = end
