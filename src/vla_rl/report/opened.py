"""What was opened of a registration, beside what is registered of it: the ground of every figure.

In: a registration as it stands, and the evidence that its ledger knows of. Out: one entry a measurement and arm, with
registered exclusions applied, in registered order. What is sealed has no evidence, so it is not here and in no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE, Evidence
from vla_rl.prereg.exclusions import exclude
from vla_rl.prereg.sections import Arm, Measurement

Found = Mapping[tuple[str, str | None], Evidence]


@dataclass(frozen=True)
class Opened:
    """One measurement of one arm.

    Attributes:
        evidence: without the episodes that are excluded.
        measurement, arm: as they are registered now; None if an amendment took them away.
    """

    evidence: Evidence
    measurement: Measurement | None
    arm: Arm | None

    @property
    def base(self) -> bool:
        """Whether it is of the policy before training: an evaluation, or what was handed in of one."""
        m = self.measurement
        return m is not None and m.kind != "series" and m.policy == "base"

    @property
    def arm_name(self) -> str:
        """What people call the arm."""
        return (self.arm.label or self.arm.id) if self.arm else self.evidence.arm or BASELINE

    @property
    def policy(self) -> str:
        """``base``, or the arm whose training made it."""
        return "base" if self.base else self.arm_name

    @property
    def rung(self) -> str:
        return (self.measurement.rung if self.measurement else None) or ""

    @property
    def step(self) -> int | None:
        """After how many updates; None where it is not told."""
        if self.base:
            return 0
        source, receipt = self.evidence.source, self.evidence.source.get("receipt")
        told = receipt.get("step") if isinstance(receipt, Mapping) else source.get("step")
        if type(told) is int:
            return told
        return self.measurement.step if self.measurement else None


def opened(registration: Registration, found: Found) -> list[Opened]:
    """Everything that was opened, by the order of measurements and arms."""
    measurements = {m.id: m for m in registration.measurements}
    arms = {None if arm.id == BASELINE else arm.id: arm for arm in registration.arms}

    def place(key: tuple[str, str | None]) -> tuple[int, int, str, str]:
        ids, ours = list(measurements), list(arms)
        measurement = ids.index(key[0]) if key[0] in ids else len(ids)
        return measurement, ours.index(key[1]) if key[1] in ours else len(ours), key[0], key[1] or ""

    return [
        Opened(exclude(found[key], registration.exclusions), measurements.get(key[0]), arms.get(key[1]))
        for key in sorted(found, key=place)
    ]
