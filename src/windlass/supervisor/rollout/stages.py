"""The course of a roll-out: which stages it has, and when it goes on to the next.

load -> gate -> [shadow] -> stages of growing weight -> promoted
    any of them -> rolled back, or aborted by a person
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.serve.records.rollouts import Kind
from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.judge import RolloutEvidence

Move = Literal["stay", "go on", "promote", "roll back"]

LOAD_S = 900.0
"""A version that is not ready after so long does not load."""


@dataclass(frozen=True)
class RolloutStage:
    """What a version gets while it is judged."""

    weight: float
    shadow: float = 0.0


@dataclass(frozen=True)
class RolloutStages:
    """The stages of one roll-out; `holds` at the last for as long as nobody promotes or aborts it."""

    stages: tuple[RolloutStage, ...]
    holds: bool = False


@dataclass(frozen=True)
class StageProgress:
    """How long a roll-out has been in its stage, and since when it is under way."""

    stage: int
    since: float
    began: float
    answers: int = 0
    """Answers of the new version in this stage."""


def course_of(kind: Kind, policy: Rollout) -> RolloutStages:
    """Return the stages that a kind of roll-out has."""
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
    course: RolloutStages, policy: Rollout, standing: StageProgress, case: RolloutEvidence, now: float
) -> Move:
    """Say what comes next.

    A later stage is reached by time and answers without an alarm; promotion, which is the last step, needs
    evidence for the version by every criterion. Who never gathers it is taken back when patience ends.
    """
    if case.verdict == "roll back":
        return "roll back"
    long_enough = now - standing.since >= policy.seconds and standing.answers >= policy.requests
    last = standing.stage == len(course.stages) - 1
    if long_enough and not last:
        return "go on"
    if course.holds:
        return "stay"
    if long_enough and case.verdict == "promote":
        return "promote"
    return "roll back" if now - standing.began >= policy.patience else "stay"
