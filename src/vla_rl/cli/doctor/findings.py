"""What a check of this machine found, and how checks are run: side by side, each for a bounded time, each by itself.

In: checks. Out: their findings, in order. A check that raises, dies or does not answer becomes a finding like any
other, and the others go on. Nothing beyond the standard library is imported: what is checked may be broken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from vla_rl.errors import VlaRlError

OK, WARNING, FAILURE = "ok", "warning", "failure"
# What a check starts is ended after the patience it was given; the check itself has this much more to say so.
GRACE_S = 10.0


@dataclass(frozen=True)
class Finding:
    """One fact about this machine.

    Attributes:
        check: what was looked at.
        status: `ok`, `warning`, or `failure` if a run on a laptop needs it.
        what: what was found, one sentence.
        remedy: what to do about it, one line; None where there is nothing to do.
    """

    check: str
    status: str
    what: str
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """Something to look at.

    Attributes:
        name: of the finding if it breaks.
        look: takes its patience in seconds, gives findings.
        needed: whether a run on a laptop needs what it looks at.
    """

    name: str
    look: Callable[[float], Iterable[Finding]]
    needed: bool = True


def findings(checks: Sequence[Check], patience_s: float) -> Iterator[Finding]:
    """Everything that the checks find, in their order, as soon as it is known.

    Args:
        patience_s: with a program that a check starts; a check as a whole gets `GRACE_S` more.
    """
    deadline = time.monotonic() + patience_s + GRACE_S
    under_way = [_Looking(check, patience_s) for check in checks]
    for looking in under_way:
        yield from looking.result(deadline, patience_s + GRACE_S)


@dataclass
class _Looking:
    """A check at work in a thread of its own, which does not keep the program alive."""

    check: Check
    patience_s: float
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        try:
            for finding in self.check.look(self.patience_s):
                self.found.append(finding)
        except VlaRlError as error:
            self._broke(error.what + (f" ({error.where})" if error.where else ""), error.remedy)
        except ImportError as error:
            self._broke(f"this cannot be looked at: {error}", "repair the package that is named, then ask again")
        except BaseException as error:  # whatever it is, the other checks go on
            what = f"the check itself failed: {type(error).__name__}: {error}"
            self._broke(what, "repair what it names; if nothing is wrong with that, report it as a bug")

    def _broke(self, what: str, remedy: str | None) -> None:
        self.found.append(Finding(self.check.name, FAILURE if self.check.needed else WARNING, what, remedy))

    def result(self, deadline: float, limit_s: float) -> list[Finding]:
        """What was found until `deadline` (of the monotonic clock), and that it is not all, if it is not."""
        self.thread.join(max(0.0, deadline - time.monotonic()))
        if self.thread.is_alive():
            remedy = "a file system or driver does not answer; --patience gives a slow machine more time"
            self._broke(f"no answer within {limit_s:.0f} s", remedy)
        return list(self.found)
