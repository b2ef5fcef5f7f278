"""From comparisons to a verdict: roll back, hold or promote.

For every criterion two bettors (`sequential_test`) watch the same numbers. One bets that the new version is
worse than tolerated; the chance of a false alarm is divided among the criteria, so in total it is at most
`policy.false_alarms` over the whole roll-out. The other bets that it is better than unbearable; promotion
needs all of these, so a version that is unbearable by any criterion is promoted with a chance of at most
`policy.doubt`. What no good version ever does (NaN, a crash at load, a changed golden answer) needs no
statistics: it is a fault and decides at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.criteria import Criterion, criteria_of
from windlass.supervisor.rollout.sequential_test import Evidence

Verdict = Literal["roll back", "hold", "promote"]


@dataclass(frozen=True)
class CriterionResult:
    """The evidence by one criterion."""

    criterion: Criterion
    worse: Evidence
    """Against the claim that it is tolerable."""
    fine: Evidence
    """Against the claim that it is unbearable; of negated numbers."""

    @classmethod
    def empty(cls, criterion: Criterion) -> CriterionResult:
        return cls(criterion, Evidence(criterion.is_tolerable), Evidence(criterion.is_bad))

    def after(self, number: float) -> CriterionResult:
        return replace(self, worse=self.worse.after(number), fine=self.fine.after(-number))


@dataclass(frozen=True)
class RolloutEvidence:
    """All evidence for and against a version."""

    policy: Rollout
    findings: Mapping[str, CriterionResult] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @classmethod
    def opened(cls, policy: Rollout, *, without: Collection[str] = ()) -> RolloutEvidence:
        """Start without evidence; `without` are criteria that do not apply to the model."""
        criteria = (each for each in criteria_of(policy) if each.name not in without)
        return cls(policy, {each.name: CriterionResult.empty(each) for each in criteria})

    def after(self, numbers: Mapping[str, float]) -> RolloutEvidence:
        """Return the evidence with the numbers of one more comparison."""
        changed = {
            name: self.findings[name].after(number)
            for name, number in numbers.items()
            if name in self.findings
        }
        return replace(self, findings={**self.findings, **changed})

    def with_fault(self, fault: str) -> RolloutEvidence:
        return replace(self, faults=(*self.faults, fault))

    @property
    def alpha(self) -> float:
        """The allowed chance of a false alarm for each criterion."""
        return self.policy.false_alarms / len(self.findings)

    @property
    def alarms(self) -> list[str]:
        return [name for name, each in self.findings.items() if each.worse.refutes(self.alpha)]

    @property
    def unsure(self) -> list[str]:
        """The criteria by which it is not yet shown to be acceptable."""
        return [name for name, each in self.findings.items() if not each.fine.refutes(self.policy.doubt)]

    @property
    def verdict(self) -> Verdict:
        if self.faults or self.alarms:
            return "roll back"
        return "hold" if self.unsure else "promote"

    @property
    def reason(self) -> str:
        """The reason of the verdict, in one sentence."""
        if self.faults:
            return self.faults[0]
        alarms = [self._described(self.findings[name]) for name in self.alarms]
        if alarms:
            return "; ".join(alarms)
        unsure = ", ".join(self.unsure)
        return f"not enough evidence yet: {unsure}" if unsure else "as good as the other by every criterion"

    def _described(self, found: CriterionResult) -> str:
        criterion = found.criterion
        return (
            f"{criterion.name} ({criterion.meaning}): {found.worse.mean:.3g} over {found.worse.count} "
            f"comparisons, tolerated is {criterion.tolerated:.3g}"
        )

    def table(self) -> list[dict[str, Any]]:
        """Return the evidence as rows, for reports."""
        return [
            {
                "criterion": name,
                "meaning": each.criterion.meaning,
                "comparisons": each.worse.count,
                "mean": each.worse.mean if each.worse.count else None,
                "tolerated": each.criterion.tolerated,
                "unbearable": each.criterion.unbearable,
                "against": each.worse.peak,
                "against_needed": 1 / self.alpha,
                "for": each.fine.peak,
                "for_needed": 1 / self.policy.doubt,
            }
            for name, each in self.findings.items()
        ]
