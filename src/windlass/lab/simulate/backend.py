"""The simulated cluster backend (cluster.backend), and what happens in it.

A group's members get nodes all at once or not at all, start, load the checkpoint, and work; a gang works when
all of its members run, an elastic group when its minimum does. A gang that loses a node rolls back to its
last checkpoint and waits for another node; an elastic group continues with the rest. A stopped group saves
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from windlass.cluster.backend import ClusterState, Group, GroupStatus, Member, State, check, refuse_other
from windlass.control.scheduler.capacity import vector
from windlass.lab.simulate.events import Events
from windlass.lab.simulate.fleet import SimulatedFleet
from windlass.lab.simulate.sim_job import SimJob
from windlass.lab.simulate.usage import UsageIntegrals
from windlass.lab.simulate.workload import FaultModel
from windlass.spec.errors import BadInput, InUse, NotFound

REFORM_S = 15.0
"""Seconds for the members of an elastic job to regroup after a member joined or left."""
END_S = 2.0
"""Seconds for processes to end that have nothing to save."""

Place = Literal["pending", "lost", "starting", "running", "done"]
SHOWN: dict[Place, State] = {"lost": "running", "starting": "pending"}


@dataclass(slots=True)
class SimulatedMember:
    """One member: its node, and its state."""

    place: Place = "pending"
    row: int = -1
    since_s: float = 0.0
    turn: int = 0
    """Grows with every assignment, so that events planned for an earlier one are void."""


@dataclass(slots=True, eq=False)
class SimulatedGroup:
    """A group that was launched."""

    group: Group
    life: SimJob
    members: list[SimulatedMember] = field(default_factory=list)
    phase: Literal["idle", "warming", "working", "leaving", "over"] = "idle"
    turn: int = 0
    stopping: bool = False
    counted: tuple[float, ...] = ()
    """Members by kind of time, as the usage integrals have them."""
    standing: GroupStatus | None = None
    """The last reported status; None if it has changed."""

    def number(self, place: Place) -> int:
        return sum(member.place == place for member in self.members)


class SimulatedBackend:
    """Groups on a simulated fleet. `lives` maps the key of a group to its job."""

    def __init__(
        self, fleet: SimulatedFleet, events: Events, fault_model: FaultModel, tally: UsageIntegrals
    ) -> None:
        self.lives: dict[str, SimJob] = {}
        self.runs: dict[str, SimulatedGroup] = {}
        self.healed_s: list[float] = []
        """Seconds from each failure until the job ran as requested."""
        self.twice = 0
        """Jobs launched or ended again after their end: must stay 0."""
        self.changed = True
        self._fleet, self._events, self._fault_model, self._tally = fleet, events, fault_model, tally
        self._guests: list[dict[str, SimulatedGroup]] = [{} for _ in range(fleet.size)]
        self._unnoticed: dict[int, list[SimulatedGroup]] = {}
        self._unplaced: dict[str, SimulatedGroup] = {}

    def launch(self, group: Group) -> None:
        run = self.runs.get(group.key)
        if run is None:
            life = self.lives.get(group.key)
            if life is None:
                raise BadInput(f"group {group.key}: unknown job")
            self.twice += life.ended_s is not None
            run = self.runs[group.key] = SimulatedGroup(check(group), life)
            if life.admitted_s is None:
                life.admitted_s = self._events.now_s
        else:
            refuse_other(run.group, group)
            if run.stopping:
                raise InUse(f"group {group.key} is being stopped")
        self._resize(run, group.count)

    def observe(self, key: str) -> GroupStatus | None:
        run = self.runs.get(key)
        return None if run is None else self._standing(run)

    def stop(self, key: str) -> None:
        run = self.runs.get(key)
        if run is None or run.stopping:
            return
        self._touch(run)
        run.stopping = True
        if run.phase == "over":
            self._remove(run)
            return
        works = run.phase == "working"
        if works:
            run.life.pause(self._events.now_s)
        run.phase, run.turn = "leaving", run.turn + 1
        self._events.after(self._fault_model.save_s() if works else END_S, self._leave, run, works)
        self._account(run)

    def scale(self, key: str, count: int) -> None:
        run = self.runs.get(key)
        if run is None:
            raise NotFound(f"there is no group {key}")
        self._resize(run, count)

    def survey(self, tenant: str | None = None) -> ClusterState:
        self._place_waiting()
        runs: Iterable[SimulatedGroup] = self.runs.values()
        if tenant is not None:
            runs = (run for run in runs if run.group.tenant == tenant)
        nodes = self._fleet.shown(self._unnoticed)
        return ClusterState(nodes, tuple([run.standing or self._standing(run) for run in runs]))

    def fail(self, rows: Iterable[int]) -> list[SimulatedGroup]:
        """Fail nodes, all at the same time; return the affected groups."""
        self._tally.advance(self._events.now_s)
        hit: dict[str, SimulatedGroup] = {}
        for row in rows:
            if not self._fleet.up[row]:
                continue
            guests = self._guests[row]
            hit.update(guests)
            for run in guests.values():
                self._account(run, gone=True)
                for member in run.members:
                    if member.row == row:
                        member.place, member.row, member.turn = "lost", -1, member.turn + 1
            self._unnoticed[row] = list(guests.values())
            guests.clear()
            self._fleet.fail(row)
        for run in hit.values():
            run.life.broken_s = run.life.broken_s or self._events.now_s
            self._settle(run)
        return list(hit.values())

    def notice(self, row: int) -> None:
        """The cluster detects that a node failed, and reschedules the members that were on it."""
        if row not in self._unnoticed:
            return
        self._fleet.notice(row)
        for run in self._unnoticed.pop(row):
            for member in run.members:
                if member.place == "lost":
                    member.place, member.since_s = "pending", self._events.now_s
            if self.runs.get(run.group.key) is run and not run.stopping:
                self._touch(run)
                self._place(run)

    def mend(self, row: int) -> None:
        self.notice(row)
        self._tally.advance(self._events.now_s)
        self._fleet.mend(row)
        self.changed = True

    def _resize(self, run: SimulatedGroup, count: int) -> None:
        if count == len(run.members) and "pending" not in (member.place for member in run.members):
            return
        self._touch(run)
        run.group = replace(run.group, count=count)
        running = run.number("running")
        while len(run.members) > count:
            self._release(run, run.members.pop())
        now_s = self._events.now_s
        run.members += [SimulatedMember(since_s=now_s) for _ in range(count - len(run.members))]
        if run.number("running") < running:
            self._settle(run)
        self._place(run)
        self._note_healed(run)

    def _place_waiting(self) -> None:
        """Try to place waiting members; by priority, then in order of arrival."""
        for run in sorted(self._unplaced.values(), key=lambda run: -run.group.priority):
            self._place(run)

    def _place(self, run: SimulatedGroup) -> None:
        """Place the pending members: all of them, or none."""
        pending = [member for member in run.members if member.place == "pending"]
        self._unplaced.pop(run.group.key, None)
        if pending and not run.stopping and run.phase != "over":
            group, need = run.group, vector(run.life.job.need)
            gang = self._fleet.choose(need, len(pending), group.placement, group.node_selector)
            if gang is None:
                self._unplaced[run.group.key] = run
            else:
                rows = (row for row, n in zip(gang.rows, gang.each, strict=True) for _ in range(n))
                self._assign(run, pending, [int(row) for row in rows])
        self._account(run)

    def _assign(self, run: SimulatedGroup, members: list[SimulatedMember], rows: list[int]) -> None:
        self._touch(run)
        need = vector(run.life.job.need)
        for member, row in zip(members, rows, strict=True):
            self._fleet.take(row, need)
            self._guests[row][run.group.key] = run
            member.place, member.row, member.since_s, member.turn = (
                "starting",
                row,
                self._events.now_s,
                member.turn + 1,
            )
        turns = [(member, member.turn) for member in members]
        self._events.after(self._fault_model.launch_s(len(members)), self._started, run, turns)

    def _started(self, run: SimulatedGroup, turns: list[tuple[SimulatedMember, int]]) -> None:
        if run.stopping:
            return
        for member, turn in turns:
            if member.turn == turn and member.place == "starting":
                member.place, member.since_s = "running", self._events.now_s
        self._touch(run)
        self._settle(run)

    def _settle(self, run: SimulatedGroup) -> None:
        """Start, continue or stop work, depending on the running members."""
        self._tally.advance(self._events.now_s)
        if run.phase in ("idle", "warming", "working"):
            able = 0 < self._min_members(run) <= run.number("running")
            if run.phase == "working":
                run.life.pause(self._events.now_s)
                self._warm(run, REFORM_S) if able else self._halt(run)
            elif run.phase == "warming" and not able:
                self._halt(run)
            elif run.phase == "idle" and able:
                self._warm(run, run.life.job.restart_s)
        elif run.phase == "leaving" and run.number("lost"):
            self._lose(run)
        self._account(run)

    def _min_members(self, run: SimulatedGroup) -> int:
        minimum = run.life.job.min_members
        return run.group.count if minimum is None else min(minimum, run.group.count)

    def _warm(self, run: SimulatedGroup, for_s: float) -> None:
        run.phase, run.turn = "warming", run.turn + 1
        self._events.after(for_s, self._begin, run, run.turn)

    def _halt(self, run: SimulatedGroup) -> None:
        run.phase, run.turn = "idle", run.turn + 1
        self._lose(run)

    def _lose(self, run: SimulatedGroup) -> None:
        job = run.life.job
        self._tally.lose(vector(job.need), run.life.roll_back() * job.members)

    def _begin(self, run: SimulatedGroup, turn: int) -> None:
        if run.turn != turn:
            return
        now_s, life = self._events.now_s, run.life
        self._tally.advance(now_s)
        run.phase = "working"
        running = [member.row for member in run.members if member.place == "running"]
        slowest = min(self._fleet.speed[row] for row in running)
        life.work(len(running) / life.job.members * slowest, now_s)
        if not life.job.endless:
            self._events.after(life.left_s / life.rate, self._finish, run, turn)
        self._note_healed(run)
        self._account(run)

    def _note_healed(self, run: SimulatedGroup) -> None:
        broken_s = run.life.broken_s
        if broken_s is not None and run.phase == "working" and run.number("running") == run.group.count:
            self.healed_s.append(self._events.now_s - broken_s)
            run.life.broken_s = None

    def _finish(self, run: SimulatedGroup, turn: int) -> None:
        if run.turn != turn:
            return
        self._touch(run)
        run.life.pause(self._events.now_s)
        self.twice += run.life.ended_s is not None
        run.life.ended_s = self._events.now_s
        run.phase, run.turn = "over", run.turn + 1
        self._unplaced.pop(run.group.key, None)
        for member in run.members:
            self._release(run, member)
            member.place = "done"

    def _leave(self, run: SimulatedGroup, saved: bool) -> None:
        """Remove the group; its progress is saved, unless a node failed before that."""
        self._touch(run)
        if saved:
            run.life.save()
        self._remove(run)

    def _remove(self, run: SimulatedGroup) -> None:
        while run.members:
            self._release(run, run.members.pop())
        self._unplaced.pop(run.group.key, None)
        del self.runs[run.group.key]

    def _release(self, run: SimulatedGroup, member: SimulatedMember) -> None:
        if member.row < 0:
            return
        self._account(run, gone=True)
        row, member.row, member.turn = member.row, -1, member.turn + 1
        self._fleet.give(row, vector(run.life.job.need))
        if all(other.row != row for other in run.members):
            self._guests[row].pop(run.group.key, None)

    def _touch(self, run: SimulatedGroup) -> None:
        """Mark the group as changed; time up to now is accounted as before."""
        self._tally.advance(self._events.now_s)
        run.standing, self.changed = None, True

    def _account(self, run: SimulatedGroup, *, gone: bool = False) -> None:
        """Update the usage integrals with what the members do from now on; nothing if they are removed."""
        need = vector(run.life.job.need)
        if run.counted:
            self._tally.change(need, run.counted, -1.0)
        run.counted = () if gone else self._members_by_kind(run)
        if run.counted:
            self._tally.change(need, run.counted, 1.0)

    def _members_by_kind(self, run: SimulatedGroup) -> tuple[float, ...]:
        """Count members with nodes, in the order of usage.KINDS."""
        seated = sum(member.row >= 0 for member in run.members)
        if not seated:
            return ()
        if run.phase == "working":
            running = [member.row for member in run.members if member.place == "running"]
            speed = min(self._fleet.speed[row] for row in running)
            return (len(running) * speed, len(running) * (1 - speed), seated - len(running))
        if run.phase == "leaving":
            return (0.0, 0.0, 0.0, 0.0, seated)
        if run.phase == "idle" and seated < len(run.members):
            return (0.0, 0.0, 0.0, seated)
        return (0.0, 0.0, seated)

    def _standing(self, run: SimulatedGroup) -> GroupStatus:
        now_ = [
            Member(
                index,
                SHOWN.get(member.place, member.place),  # type: ignore[arg-type]
                exit_code=0 if member.place == "done" else None,
                node=self._fleet.name(member.row) if member.row >= 0 else "",
                since_s=member.since_s,
                reason="waits for a node" if member.place == "pending" else "",
            )
            for index, member in enumerate(run.members)
        ]
        run.standing = GroupStatus(run.group, tuple(now_), run.stopping)
        return run.standing
