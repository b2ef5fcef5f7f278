"""The stages of a roll-out, and when it moves to the next. Pure.

load -> gate -> [shadow] -> stages of growing weight -> promoted
    any of them -> rolled back, or aborted by an operator
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.serve.records.rollouts import Kind
from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.judge import RolloutEvidence

Move = Literal["stay", "advance", "promote", "roll back"]

LOAD_S = 900.0
"""A version that is not ready after this time counts as not loading."""


@dataclass(frozen=True)
class RolloutStage:
    """The share of requests, and of copies, that a version gets while it is judged."""

    weight: float
    shadow: float = 0.0


@dataclass(frozen=True)
class RolloutStages:
    """The stages of one roll-out; with `holds` it stays at the last until an operator ends it."""

    stages: tuple[RolloutStage, ...]
    holds: bool = False


@dataclass(frozen=True)
class StageProgress:
    """The stage of a roll-out, since when it is there, and when the roll-out began."""

    stage: int
    since: float
    began: float
    answers: int = 0
    """Answers of the new version in this stage."""


def stages_of(kind: Kind, policy: Rollout) -> RolloutStages:
    """Return the stages of a kind of roll-out."""
    shadow = (RolloutStage(0.0, policy.shadow),) if policy.shadow else ()
    match kind:
        case "canary":
            return RolloutStages(shadow + tuple(RolloutStage(weight) for weight in policy.stages))
        case "blue_green":
            return RolloutStages((*shadow, RolloutStage(1.0)))
        case "weights":
            return RolloutStages((*shadow, RolloutStage(policy.stages[0])), holds=True)
        case "shadow":
            return RolloutStages((RolloutStage(0.0, policy.shadow or 1.0),), holds=True)


def decide(
    plan: RolloutStages, policy: Rollout, progress: StageProgress, evidence: RolloutEvidence, now: float
) -> Move:
    """Return the next move.

    A roll-out advances after enough time and answers without an alarm; promotion, the last step, needs
    evidence for the version by every criterion. Without it, the version is rolled back when patience ends.
    """
    if evidence.verdict == "roll back":
        return "roll back"
    long_enough = now - progress.since >= policy.seconds and progress.answers >= policy.requests
    last = progress.stage == len(plan.stages) - 1
    if long_enough and not last:
        return "advance"
    if plan.holds:
        return "stay"
    if long_enough and evidence.verdict == "promote":
        return "promote"
    return "roll back" if now - progress.began >= policy.patience else "stay"
