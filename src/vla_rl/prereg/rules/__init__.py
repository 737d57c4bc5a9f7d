"""Rule kinds: a closed set, each a frozen dataclass of typed parameters.

In: a registration's `rule` mappings, whose `kind` is a key of `RULES`. Out: rules that tell what they need, why they
could never fire, and what they find. There are no expressions and nothing is imported by name.
"""

from vla_rl.prereg.rules.alike import Overlap, Tolerance
from vla_rl.prereg.rules.bands import Band, Bands
from vla_rl.prereg.rules.base import Context, Direction, Number, Planned, Rule, measured_for, reached
from vla_rl.prereg.rules.clustered import ClusterBootstrap
from vla_rl.prereg.rules.compound import AllOf, AnyOf
from vla_rl.prereg.rules.counts import BinomialTail, Interval
from vla_rl.prereg.rules.lines import Record, Threshold, Window
from vla_rl.prereg.rules.pairs import McNemar, SignTest
from vla_rl.prereg.rules.resampled import PairedBootstrap
from vla_rl.prereg.rules.stated import StatedInterval

_KINDS: tuple[type[Rule], ...] = (
    BinomialTail,
    Interval,
    McNemar,
    SignTest,
    PairedBootstrap,
    ClusterBootstrap,
    Threshold,
    Window,
    Tolerance,
    StatedInterval,
    Bands,
    Overlap,
    Record,
    AllOf,
    AnyOf,
)
RULES: dict[str, type[Rule]] = {rule.KIND: rule for rule in _KINDS}

__all__ = ["RULES", "Band", "Context", "Direction", "Number", "Planned", "Rule", "measured_for", "reached"]
