"""One roll-out under way: takes in what is seen, and says what should run because of it.

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
from windlass.supervisor.rollout.eval_texts import OWN_MORE, Passages
from windlass.supervisor.rollout.judge import RolloutEvidence
from windlass.supervisor.rollout.stages import (
    LOAD_S,
    RolloutStage,
    RolloutStages,
    StageProgress,
    course_of,
    decide,
)
from windlass.supervisor.state import Phase, ServiceState

NOT_A_NUMBER = "not_a_number"
MAX_DEATHS = 2
KEPT_SAMPLES = 256
TIMES = ("first_token", "per_token")
OF_TEXT = ("per_token", "repetition", "longer", "shorter", "held_out")
"""What an encoder has no numbers for."""
ALIVE = ("ready", "unwell")
"""Who was in one of these and is gone has died: a replica that is wanted no more drains first."""


@dataclass
class AnswerPairs:
    """Matches answers of both versions of about the same time; each is used once."""

    stable: deque[AnswerSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    candidate: deque[AnswerSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))

    def drain(self) -> list[tuple[AnswerSample, AnswerSample]]:
        """Take out all pairs, the newest together."""
        found = []
        while self.stable and self.candidate:
            found.append((self.stable.pop(), self.candidate.pop()))
        return found


class RolloutState:
    """The state of a roll-out in the supervisor that drives it; after a restart it begins again."""

    def __init__(self, record: RolloutRecord, stable: ReplicaGroup, candidate: Item, now: float) -> None:
        self.record, self.stable, self.candidate = record, stable, candidate
        self.state: State = "loading"
        self.reason = ""
        self.case = RolloutEvidence.opened(record.policy)
        self.course: RolloutStages = course_of(record.kind, record.policy)
        self.standing = StageProgress(-1, now, now)
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
        """The part of the requests that the new version gets now."""
        return {"promoted": 1.0, "rolled_back": 0.0, "aborted": 0.0}.get(self.state, self._applied.weight)

    @property
    def wants_rounds(self) -> bool:
        """Whether the new version is there to be asked, and nobody asks it yet."""
        return self.rounds is None and self.state not in ("loading", *ENDED)

    def step(self, view: ServiceState, now: float, *, wish: str = "", wrong: str = "") -> None:
        """Take in one view, and what was answered wrongly; go on if it is time."""
        if self.is_ended:
            return
        if wish == "abort":
            self._end("aborted", "aborted by a person", now)
            return
        self._watch_replicas(view, wrong)
        if self.case.faults:
            self._end("rolled_back", self.case.reason, now)
        elif self.state == "loading":
            self._load(view, now)
        elif wish == "promote":
            self._end("promoted", "promoted by a person", now)
        else:
            self._judge(view, now)

    def place(self, wanted: DesiredService) -> DesiredService:
        """Return what should run, with this roll-out in it."""
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
        elif now - self.standing.since > LOAD_S:
            self._end("rolled_back", f"it was not ready after {LOAD_S:.0f} s", now)

    def _judge(self, view: ServiceState, now: float) -> None:
        self._take_rounds()
        self._take_outcomes(view.outcomes)
        if self.state == "gate":
            if self.case.verdict == "roll back":
                self._end("rolled_back", self.case.reason, now)
            elif self._own >= GATE_ROUNDS:
                self._enter(self._first_stage(), now)
            elif now - self.standing.since > LOAD_S:
                self._end("rolled_back", f"it could not be compared within {LOAD_S:.0f} s", now)
            return
        target = self.course.stages[self.standing.stage]
        if self._applied != target:
            self._apply(target, view, now)
        move = decide(self.course, self.record.policy, self.standing, self.case, now)
        if move == "roll back":
            self._end("rolled_back", self.case.reason, now)
        elif move == "promote":
            self._end("promoted", self.case.reason, now)
        elif move == "go on" and self._applied == target:
            self._enter(self._named(self.standing.stage + 1), now)

    def _apply(self, target: RolloutStage, view: ServiceState, now: float) -> None:
        """Give it its requests once enough of its replicas are ready for them; the stage begins then."""
        if self._ready(view) >= self._needed():
            self._applied = target
            self._pairs = AnswerPairs()  # what was answered under another load is not compared
            self.standing = replace(self.standing, since=now, answers=0)

    def _take_rounds(self) -> None:
        while self.rounds is not None and not self.rounds.found.empty():
            found = self.rounds.found.get_nowait()
            if isinstance(found, Passages):
                self._measure_on(found)
            else:
                self._take_round(found)

    def _measure_on(self, passages: Passages) -> None:
        self.origin = passages.origin
        if passages.origin == "own":
            policy = self.record.policy
            more = policy.model_copy(update={"held_out": min(0.8, policy.held_out + OWN_MORE)})
            self.case = RolloutEvidence.opened(more)
        elif passages.origin == "vectors":
            self.case = RolloutEvidence.opened(self.record.policy, without=OF_TEXT)

    def _take_round(self, found: Round) -> None:
        self._own += 1
        self.standing = replace(self.standing, answers=self.standing.answers + 1)
        self._compare(found.stable, found.candidate)
        if found.stable_bits and found.candidate_bits:
            self.case = self.case.after(compare_text(found.stable_bits, found.candidate_bits))
        if found.fault:
            self.case = self.case.with_fault(found.fault)

    def _take_outcomes(self, outcomes: tuple[AnswerOutcome, ...]) -> None:
        for each in outcomes:
            if each.version == self.candidate.name:
                self.standing = replace(self.standing, answers=self.standing.answers + 1)
                self._pairs.candidate.append(_sample(each))
                if each.code == NOT_A_NUMBER:
                    self.case = self.case.with_fault("it computes what is no number, for a client's request")
            elif each.version == self.stable.version and not each.shadow:
                self._pairs.stable.append(_sample(each))
        for stable, candidate in self._pairs.drain():
            self._compare(stable, candidate)

    def _compare(self, stable: AnswerSample, candidate: AnswerSample) -> None:
        numbers = compare(self.record.policy, stable, candidate)
        if self._applied.weight > 0.5:
            # The old version has little to do by now, and would be the quicker one for that alone.
            numbers = {name: number for name, number in numbers.items() if name not in TIMES}
        self.case = self.case.after(numbers)

    def _watch_replicas(self, view: ServiceState, wrong: str) -> None:
        """See what no good version does: never ready, dying, or answering known questions otherwise."""
        version = self.candidate.name
        if version in view.given_up and view.wanted.group(version) is not None:  # not an earlier attempt
            self.fault(f"it does not stay up: {view.given_up[version]}")
        if wrong:
            self.fault(f"it answers known questions wrongly: {wrong}")
        here = {each.name: each.phase for each in view.of(version)}
        self._deaths += sum(phase in ALIVE and name not in here for name, phase in self._seen.items())
        self._seen = here
        if self._deaths >= MAX_DEATHS:
            self.fault(f"{self._deaths} of its replicas died")

    def fault(self, fault: str) -> None:
        """Note what no good version does; the next step takes it back."""
        if fault not in self.case.faults:
            self.case = self.case.with_fault(fault)

    def _ready(self, view: ServiceState) -> int:
        return sum(each.phase == "ready" for each in view.of(self.candidate.name))

    def _needed(self) -> int:
        """Return how many replicas the stage at hand needs: its part of what the old version has."""
        if self.standing.stage < 0:
            return 1
        weight = self.course.stages[self.standing.stage].weight
        return max(1, math.ceil(weight * self.stable.replicas))

    def _first_stage(self) -> State:
        return self._named(0)

    def _named(self, stage: int) -> State:
        self.standing = replace(self.standing, stage=stage)
        return "canary" if self.course.stages[stage].weight else "shadow"

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.standing = replace(self.standing, since=now, answers=0)
        stage = self.course.stages[self.standing.stage] if self.standing.stage >= 0 else RolloutStage(0.0)
        after_s = round(now - self.standing.began, 3)
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
