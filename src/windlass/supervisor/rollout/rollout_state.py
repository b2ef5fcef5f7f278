"""One roll-out under way: takes in evidence, and returns what should run.

loading -> gate -> shadow or canary, stage by stage -> promoted | rolled_back | aborted
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

from windlass.serve.records.rollouts import ENDED, RolloutRecord, State
from windlass.spec.protocol.routing import AnswerOutcome
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.rollout.ab_rounds import GATE_ROUNDS, Round, Rounds
from windlass.supervisor.rollout.criteria import AnswerSample, compare, compare_text
from windlass.supervisor.rollout.eval_texts import OWN_MORE, EvalTexts
from windlass.supervisor.rollout.judge import RolloutEvidence
from windlass.supervisor.rollout.stages import (
    LOAD_S,
    RolloutStage,
    RolloutStages,
    StageProgress,
    decide,
    stages_of,
)
from windlass.supervisor.state import Phase, ServiceState

NOT_A_NUMBER = "not_a_number"
MAX_DEATHS = 2
KEPT_SAMPLES = 256
TIMES = ("first_token", "per_token")
OF_TEXT = ("per_token", "repetition", "longer", "shorter", "held_out")
"""Criteria that do not apply to an encoder."""
ALIVE = ("ready", "unhealthy")
"""A replica that disappears from one of these phases has died: one that is not needed drains first."""


@dataclass
class AnswerPairs:
    """Pairs answers of both versions of about the same time; each is used once."""

    stable: deque[AnswerSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    candidate: deque[AnswerSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))

    def drain(self) -> list[tuple[AnswerSample, AnswerSample]]:
        """Take out all pairs, the newest together."""
        found = []
        while self.stable and self.candidate:
            found.append((self.stable.pop(), self.candidate.pop()))
        return found


class RolloutState:
    """The state of a roll-out in the supervisor that drives it; after a restart it starts again."""

    def __init__(self, record: RolloutRecord, stable: ReplicaGroup, candidate: Item, now: float) -> None:
        self.record, self.stable, self.candidate = record, stable, candidate
        self.state: State = "loading"
        self.reason = ""
        self.evidence = RolloutEvidence.opened(record.policy)
        self.plan: RolloutStages = stages_of(record.kind, record.policy)
        self.progress = StageProgress(-1, now, now)
        self.rounds: Rounds | None = None
        self.origin = ""
        self.history: list[dict[str, object]] = []
        self._applied = RolloutStage(0.0)
        self._pairs = AnswerPairs()
        self._own = 0
        self._deaths = 0
        self._seen: dict[str, Phase] = {}
        self._enter("loading", now)

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def weight(self) -> float:
        """The share of the requests that the new version gets now."""
        return {"promoted": 1.0, "rolled_back": 0.0, "aborted": 0.0}.get(self.state, self._applied.weight)

    @property
    def wants_rounds(self) -> bool:
        """Whether the new version is ready for rounds, and none run yet."""
        return self.rounds is None and self.state not in ("loading", *ENDED)

    def step(self, view: ServiceState, now: float, *, command: str = "", wrong: str = "") -> None:
        """Take in one state of the service, and a wrong probe answer if any; advance if it is time."""
        if self.is_ended:
            return
        if command == "abort":
            self._end("aborted", "aborted by an operator", now)
            return
        self._watch_replicas(view, wrong)
        if self.evidence.faults:
            self._end("rolled_back", self.evidence.reason, now)
        elif self.state == "loading":
            self._load(view, now)
        elif command == "promote":
            self._end("promoted", "promoted by an operator", now)
        else:
            self._judge(view, now)

    def place(self, wanted: DesiredService) -> DesiredService:
        """Return the desired state with this roll-out in it."""
        old = wanted.group(self.stable.version)
        new = wanted.group(self.candidate.name) or ReplicaGroup((self.candidate,), replicas=1, weight=0.0)
        if self.state in ("rolled_back", "aborted"):
            wanted = wanted.without(new.version)
            return wanted.with_group(replace(old, weight=1.0)) if old else wanted
        if self.state == "promoted":
            replicas = max(new.replicas, self.stable.replicas)
            wanted = wanted.with_group(replace(new, replicas=replicas, weight=1.0, shadow=0.0))
            standby = (self.stable.version, *(s for s in wanted.standby if s != self.stable.version))
            wanted = replace(wanted, standby=standby)
            return wanted.with_group(replace(old, weight=0.0)) if old else wanted
        stage = self._applied
        replicas = max(new.replicas, self._needed())
        wanted = wanted.with_group(replace(new, replicas=replicas, weight=stage.weight, shadow=stage.shadow))
        return wanted.with_group(replace(old, weight=1.0 - stage.weight)) if old else wanted

    def _load(self, view: ServiceState, now: float) -> None:
        if self._ready(view) >= 1:
            self._enter("gate" if self.record.policy.gate else self._first_stage(), now)
        elif now - self.progress.since > LOAD_S:
            self._end("rolled_back", f"it was not ready after {LOAD_S:.0f} s", now)

    def _judge(self, view: ServiceState, now: float) -> None:
        self._take_rounds()
        self._take_outcomes(view.outcomes)
        if self.state == "gate":
            if self.evidence.verdict == "roll back":
                self._end("rolled_back", self.evidence.reason, now)
            elif self._own >= GATE_ROUNDS:
                self._enter(self._first_stage(), now)
            elif now - self.progress.since > LOAD_S:
                self._end("rolled_back", f"it could not be compared within {LOAD_S:.0f} s", now)
            return
        target = self.plan.stages[self.progress.stage]
        if self._applied != target:
            self._apply(target, view, now)
        move = decide(self.plan, self.record.policy, self.progress, self.evidence, now)
        if move == "roll back":
            self._end("rolled_back", self.evidence.reason, now)
        elif move == "promote":
            self._end("promoted", self.evidence.reason, now)
        elif move == "advance" and self._applied == target:
            self._enter(self._named(self.progress.stage + 1), now)

    def _apply(self, target: RolloutStage, view: ServiceState, now: float) -> None:
        """Route its share of requests to it once enough of its replicas are ready; the stage starts then."""
        if self._ready(view) >= self._needed():
            self._applied = target
            self._pairs = AnswerPairs()  # answers under another load are not compared
            self.progress = replace(self.progress, since=now, answers=0)

    def _take_rounds(self) -> None:
        while self.rounds is not None and not self.rounds.found.empty():
            found = self.rounds.found.get_nowait()
            if isinstance(found, EvalTexts):
                self._measure_on(found)
            else:
                self._take_round(found)

    def _measure_on(self, texts: EvalTexts) -> None:
        self.origin = texts.origin
        if texts.origin == "own":
            policy = self.record.policy
            more = policy.model_copy(update={"held_out": min(0.8, policy.held_out + OWN_MORE)})
            self.evidence = RolloutEvidence.opened(more)
        elif texts.origin == "vectors":
            self.evidence = RolloutEvidence.opened(self.record.policy, without=OF_TEXT)

    def _take_round(self, found: Round) -> None:
        self._own += 1
        self.progress = replace(self.progress, answers=self.progress.answers + 1)
        self._compare(found.stable, found.candidate)
        if found.stable_bits and found.candidate_bits:
            self.evidence = self.evidence.after(compare_text(found.stable_bits, found.candidate_bits))
        if found.fault:
            self.evidence = self.evidence.with_fault(found.fault)

    def _take_outcomes(self, outcomes: tuple[AnswerOutcome, ...]) -> None:
        for each in outcomes:
            if each.version == self.candidate.name:
                self.progress = replace(self.progress, answers=self.progress.answers + 1)
                self._pairs.candidate.append(_sample(each))
                if each.code == NOT_A_NUMBER:
                    self.evidence = self.evidence.with_fault(
                        "it computes NaN or infinity, for a client's request"
                    )
            elif each.version == self.stable.version and not each.shadow:
                self._pairs.stable.append(_sample(each))
        for stable, candidate in self._pairs.drain():
            self._compare(stable, candidate)

    def _compare(self, stable: AnswerSample, candidate: AnswerSample) -> None:
        numbers = compare(self.record.policy, stable, candidate)
        if self._applied.weight > 0.5:
            # The old version has little load by now, and would be faster for that alone.
            numbers = {name: number for name, number in numbers.items() if name not in TIMES}
        self.evidence = self.evidence.after(numbers)

    def _watch_replicas(self, view: ServiceState, wrong: str) -> None:
        """Detect faults that no good version has: not starting, dying, or wrong answers to golden prompts."""
        version = self.candidate.name
        if version in view.given_up and view.wanted.group(version) is not None:  # not an earlier attempt
            self.fault(f"it does not stay up: {view.given_up[version]}")
        if wrong:
            self.fault(f"it answers golden prompts wrongly: {wrong}")
        here = {each.name: each.phase for each in view.of(version)}
        self._deaths += sum(phase in ALIVE and name not in here for name, phase in self._seen.items())
        self._seen = here
        if self._deaths >= MAX_DEATHS:
            self.fault(f"{self._deaths} of its replicas died")

    def fault(self, fault: str) -> None:
        """Record a fault; the next step rolls the version back."""
        if fault not in self.evidence.faults:
            self.evidence = self.evidence.with_fault(fault)

    def _ready(self, view: ServiceState) -> int:
        return sum(each.phase == "ready" for each in view.of(self.candidate.name))

    def _needed(self) -> int:
        """Return how many replicas the current stage needs: its share of what the old version has."""
        if self.progress.stage < 0:
            return 1
        weight = self.plan.stages[self.progress.stage].weight
        return max(1, math.ceil(weight * self.stable.replicas))

    def _first_stage(self) -> State:
        return self._named(0)

    def _named(self, stage: int) -> State:
        self.progress = replace(self.progress, stage=stage)
        return "canary" if self.plan.stages[stage].weight else "shadow"

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.progress = replace(self.progress, since=now, answers=0)
        stage = self.plan.stages[self.progress.stage] if self.progress.stage >= 0 else RolloutStage(0.0)
        after_s = round(now - self.progress.began, 3)
        self.history.append(
            {"state": state, "weight": stage.weight, "shadow": stage.shadow, "after_s": after_s}
        )

    def _end(self, state: State, reason: str, now: float) -> None:
        self.reason = reason
        self._enter(state, now)
        if self.rounds is not None:
            self.rounds.stop()


def _sample(outcome: AnswerOutcome) -> AnswerSample:
    return AnswerSample(
        bool(outcome.code), outcome.first_token_s, outcome.per_token_s, outcome.tokens, outcome.repetition
    )
