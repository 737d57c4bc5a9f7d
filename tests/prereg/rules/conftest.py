"""Evidence and contexts for the tests of rules, by plain functions handed out as fixtures."""

import pytest

from vla_rl.prereg.evidence import Evidence, parse
from vla_rl.prereg.rules import Context, Planned


def episodes(measurement, arm=None, *, scene="s1", **metrics):
    """Evidence of episodes: every metric as {seed: value}."""
    seeds = sorted({seed for values in metrics.values() for seed in values})
    rows = [
        {"seed": s, "draw": 0, **{name: values[s] for name, values in metrics.items() if s in values}} for s in seeds
    ]
    return Evidence(measurement, arm, "episodes", scene_hash=scene, protocol="sim100", episodes=tuple(rows))


def successes(measurement, won, seeds, arm=None, **changes):
    """Evidence of episodes that succeeded on the seeds `won`."""
    return episodes(measurement, arm, success={seed: seed in won for seed in seeds}, **changes)


def recorded(measurement, arm=None, **payload):
    """Evidence of recorded counts (pairs) or numbers."""
    kind = "counts" if all(isinstance(value, tuple) for value in payload.values()) else "numbers"
    return Evidence(measurement, arm, kind, **{kind: payload})


def series(measurement, arm=None, **columns):
    """Evidence of rows: every key as a list, steps from 1."""
    length = len(next(iter(columns.values())))
    rows = [{"step": i + 1, **{key: column[i] for key, column in columns.items()}} for i in range(length)]
    return Evidence(measurement, arm, "series", rows=tuple(rows))


def context(*evidence, planned=None, **changes):
    """A context with this evidence; measurements that are not planned otherwise are planned as they are."""
    kinds = {"episodes": "evaluation", "series": "series", "counts": "recorded", "numbers": "recorded"}
    arms = {}
    for e in evidence:
        arms.setdefault(e.measurement, []).append(e.arm)
    plans = {e.measurement: Planned(kinds[e.kind], arms=tuple(arms[e.measurement])) for e in evidence}
    return Context({**plans, **(planned or {})}, evidence={(e.measurement, e.arm): e for e in evidence}, **changes)


@pytest.fixture
def make():
    """The builders above, as attributes."""

    class Make:
        episodes, successes, recorded = staticmethod(episodes), staticmethod(successes), staticmethod(recorded)
        series, context, parse = staticmethod(series), staticmethod(context), staticmethod(parse)

        @staticmethod
        def evaluation(n, first=0, **changes):
            return Planned("evaluation", seeds=tuple(range(first, first + n)), **changes)

    return Make
