"""A roll-out step by step, on views made by hand: no process runs, and time is a number."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from windlass.serve.records.rollouts import Kind, RolloutRecord
from windlass.spec.protocol.routing import AnswerOutcome
from windlass.spec.rollout import Rollout
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.rollout.ab_rounds import bits_per_byte, repetition_of
from windlass.supervisor.rollout.report import markdown, report_of
from windlass.supervisor.rollout.rollout_state import RolloutState
from windlass.supervisor.rollout.stages import stages_of
from windlass.supervisor.state import Phase, RunningReplica, ServiceState

STABLE = ReplicaGroup((Item("base@3", Path("/3")),), replicas=2)
NEW = Item("base@4", Path("/4"))
POLICY = Rollout(gate=False, requests=10, seconds=5, patience=10_000)


def drive_of(kind: Kind = "canary", policy: Rollout = POLICY) -> RolloutState:
    return RolloutState(RolloutRecord("ro-1", "base", "", "base@4", kind, policy, "", "me"), STABLE, NEW, 0.0)


def replica(version: str, number: int, phase: Phase = "ready", why: str = "") -> RunningReplica:
    return RunningReplica(f"{version}-{number}", version, Path("/s"), 1, phase, 0.0, 0.0, why=why)


class Stage:
    """A supervisor played by hand: what is wanted runs at once, and clients ask all the time."""

    def __init__(self, drive: RolloutState) -> None:
        self.drive, self.now, self.draw = drive, 0.0, random.Random(5)
        self.wanted = drive.place(DesiredService((STABLE,)))
        self.weights: list[float] = []

    def view(self, outcomes: tuple[AnswerOutcome, ...] = (), **more: object) -> ServiceState:
        running = [replica(g.version, n) for g in self.wanted.groups for n in range(g.replicas)]
        return ServiceState(self.wanted, tuple(running), outcomes, **more)  # type: ignore[arg-type]

    def play(self, steps: int, *, code: str = "", slow: float = 1.0) -> None:
        for _ in range(steps):
            self.now += 1.0
            outcomes = [self.outcome(v, code, slow) for v in ("base@3", "base@4") if self.has_traffic(v)]
            self.drive.step(self.view(tuple(outcomes) * 4), self.now)
            self.wanted = self.drive.place(self.wanted)
            self.weights.append(self.drive.weight)
            if self.drive.is_ended:
                break

    def has_traffic(self, version: str) -> bool:
        group = self.wanted.group(version)
        return group is not None and bool(group.weight or group.shadow)

    def outcome(self, version: str, code: str, slow: float) -> AnswerOutcome:
        bad = version == "base@4"
        seconds = self.draw.uniform(0.1, 0.15) * (slow if bad else 1.0)
        tokens = self.draw.randrange(5, 50)
        return AnswerOutcome(version, "r", code if bad else "", seconds, seconds / 5, tokens, 0.1)


def judged_text(drive: RolloutState) -> None:
    """Evidence about held-out text, which rounds of real engines give elsewhere."""
    for _ in range(40):
        drive.evidence = drive.evidence.after({"held_out": 0.0})


def test_a_good_version_gets_more_and_more_until_it_is_promoted() -> None:
    stage = Stage(drive_of())
    judged_text(stage.drive)
    stage.play(400)
    assert stage.drive.state == "promoted"
    assert [w for w, before in zip(stage.weights[1:], stage.weights, strict=False) if w != before] == [
        0.05, 0.25, 0.5, 1.0,
    ]  # fmt: skip


def test_the_promoted_version_has_all_replicas_and_the_old_one_stands_by() -> None:
    stage = Stage(drive_of())
    judged_text(stage.drive)
    stage.play(400)
    new, old = stage.wanted.group("base@4"), stage.wanted.group("base@3")
    assert new is not None
    assert old is not None
    assert (new.weight, new.replicas, old.weight, stage.wanted.standby) == (1.0, 2, 0.0, ("base@3",))


def test_without_evidence_about_text_it_is_held_and_taken_back_when_patience_ends() -> None:
    stage = Stage(drive_of(policy=POLICY.model_copy(update={"patience": 300.0})))
    stage.play(250)
    assert stage.drive.state == "canary"
    stage.play(100)
    assert stage.drive.state == "rolled_back"
    assert "held_out" in stage.drive.reason


@pytest.mark.parametrize(
    ("worse", "said"), [({"slow": 5.0}, "as long"), ({"code": "lost"}, "failed answers")]
)
def test_a_worse_version_loses_all_requests_at_once(worse: dict[str, float], said: str) -> None:
    stage = Stage(drive_of())
    stage.play(200, **worse)  # type: ignore[arg-type]
    assert stage.drive.state == "rolled_back"
    assert said in stage.drive.reason
    assert stage.wanted.group("base@4") is None
    old = stage.wanted.group("base@3")
    assert old is not None
    assert old.weight == 1.0
    assert max(stage.weights) <= 0.25


def test_one_answer_that_is_no_number_is_enough() -> None:
    stage = Stage(drive_of())
    stage.play(2)
    stage.drive.step(stage.view((AnswerOutcome("base@4", "r", "not_a_number"),)), 3.0)
    stage.drive.step(stage.view(), 4.0)
    assert stage.drive.state == "rolled_back"


def test_a_version_that_crashes_at_load_never_gets_a_request() -> None:
    stage = Stage(drive_of())
    view = ServiceState(stage.wanted, (replica("base@3", 0),), given_up={"base@4": "it ended with code 1"})
    stage.drive.step(view, 1.0)
    assert stage.drive.state == "rolled_back"
    assert "does not stay up" in stage.drive.reason
    assert stage.weights == []
    assert stage.drive.place(stage.wanted).group("base@4") is None


def test_replicas_that_die_again_and_again_end_it() -> None:
    stage = Stage(drive_of())
    stage.play(3)
    for number in (7, 8):
        stage.drive.step(ServiceState(stage.wanted, (replica("base@4", number),)), 4.0)
    stage.drive.step(ServiceState(stage.wanted, (replica("base@4", 9),)), 5.0)
    assert stage.drive.state == "rolled_back"
    assert "died" in stage.drive.reason


def test_a_replica_that_was_drained_did_not_die() -> None:
    stage = Stage(drive_of())
    stage.play(3)
    for number in (7, 8):
        stage.drive.step(
            ServiceState(stage.wanted, (replica("base@4", 0), replica("base@4", number, "draining"))), 4.0
        )
    stage.drive.step(ServiceState(stage.wanted, (replica("base@4", 0),)), 5.0)
    assert stage.drive.state == "canary"


def test_a_known_answer_that_changed_ends_it() -> None:
    stage = Stage(drive_of())
    stage.play(3)
    stage.drive.step(stage.view(), 4.0, wrong="engine-2 is wrong: [1] instead of [2]")
    assert stage.drive.state == "rolled_back"
    assert "[1] instead of [2]" in stage.drive.reason


def test_more_requests_come_only_when_enough_replicas_are_ready_for_them() -> None:
    stage = Stage(drive_of("blue_green"))
    stage.drive.step(stage.view(), 1.0)
    stage.wanted = stage.drive.place(stage.wanted)
    one_ready = ServiceState(stage.wanted, (replica("base@4", 0),))
    stage.drive.step(one_ready, 2.0)
    stage.wanted = stage.drive.place(stage.wanted)
    new = stage.wanted.group("base@4")
    assert new is not None
    assert (new.replicas, new.weight) == (2, 0.0)
    stage.drive.step(stage.view(), 3.0)
    assert stage.drive.weight == 1.0


def test_a_person_ends_it_at_any_time() -> None:
    stage = Stage(drive_of())
    stage.play(20)
    stage.drive.step(stage.view(), 21.0, command="abort")
    assert stage.drive.state == "aborted"
    other = Stage(drive_of())
    other.play(20)
    other.drive.step(other.view(), 21.0, command="promote")
    assert other.drive.state == "promoted"


def test_fixed_weights_and_shadows_are_kept_until_an_operator_decides() -> None:
    for kind, weight, shadow in (("weights", 0.05, 0.0), ("shadow", 0.0, 1.0)):
        stage = Stage(drive_of(kind))  # type: ignore[arg-type]
        judged_text(stage.drive)
        stage.play(300)
        new = stage.wanted.group("base@4")
        assert new is not None
        assert (new.weight, new.shadow, stage.drive.is_ended) == (weight, shadow, False)


def test_a_shadow_before_the_canary_gets_copies_and_no_requests() -> None:
    course = stages_of("canary", Rollout(shadow=0.3))
    assert (course.stages[0].weight, course.stages[0].shadow) == (0.0, 0.3)
    assert [stage.weight for stage in course.stages[1:]] == [0.05, 0.25, 0.5, 1.0]


def test_the_report_says_what_was_found() -> None:
    stage = Stage(drive_of())
    stage.play(200, slow=5.0)
    page = markdown(report_of(stage.drive))
    assert "**Rolled back**" in page
    assert "| first_token |" in page


def test_a_text_without_scores_costs_as_much_as_guessing() -> None:
    assert bits_per_byte([], 4, 256, 4) == pytest.approx(8.0)
    assert bits_per_byte([0.0, 0.0, 0.0], 4, 256, 4) == pytest.approx(2.0)


def test_repetition_is_the_part_of_pairs_that_came_before() -> None:
    assert repetition_of([1, 2, 3, 4]) == 0.0
    assert repetition_of([1, 1, 1, 1]) == pytest.approx(2 / 3)
    assert repetition_of([1]) == 0.0
