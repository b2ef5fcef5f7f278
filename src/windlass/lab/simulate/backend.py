"""A cluster as the control plane sees one (cluster.backend), and what happens in it.

A group's members get machines all at once or not at all, start, load what was saved, and work; the gang works
when all of it runs, an elastic one when its fewest do. A gang that loses a machine goes back to its last save
and waits for another machine; an elastic one goes on with those that are left. Who is stopped saves first.
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
from windlass.lab.simulate.workload import Misfortune
from windlass.spec.errors import BadInput, InUse, NotFound

REFORM_S = 15.0
"""For the members of an elastic job to meet again after one came or went."""
END_S = 2.0
"""For processes to end that have nothing to save."""

Place = Literal["pending", "lost", "starting", "running", "done"]
SHOWN: dict[Place, State] = {"lost": "running", "starting": "pending"}


@dataclass(slots=True)
class SimulatedMember:
    """One member: its machine, and how far it is."""

    place: Place = "pending"
    row: int = -1
    since_s: float = 0.0
    turn: int = 0
    """Grows when the seat is taken anew, so that what was planned for it before is void."""


@dataclass(slots=True, eq=False)
class SimulatedGroup:
    """A group that was launched."""

    group: Group
    life: SimJob
    seats: list[SimulatedMember] = field(default_factory=list)
    phase: Literal["idle", "warming", "working", "leaving", "over"] = "idle"
    turn: int = 0
    stopping: bool = False
    counted: tuple[float, ...] = ()
    """Members by kind of time, as the tally has them."""
    standing: GroupStatus | None = None
    """As it was told last; None when it has changed."""

    def number(self, place: Place) -> int:
        return sum(seat.place == place for seat in self.seats)


class SimulatedBackend:
    """Groups on a simulated fleet. `lives` says what is behind the key of a group."""

    def __init__(
        self, fleet: SimulatedFleet, events: Events, misfortune: Misfortune, tally: UsageIntegrals
    ) -> None:
        self.lives: dict[str, SimJob] = {}
        self.runs: dict[str, SimulatedGroup] = {}
        self.healed_s: list[float] = []
        """From each failure until the job ran as it was asked for."""
        self.twice = 0
        """Jobs that were launched again after their end, or ended again: must stay 0."""
        self.changed = True
        self._fleet, self._events, self._misfortune, self._tally = fleet, events, misfortune, tally
        self._guests: list[dict[str, SimulatedGroup]] = [{} for _ in range(fleet.size)]
        self._unnoticed: dict[int, list[SimulatedGroup]] = {}
        self._unplaced: dict[str, SimulatedGroup] = {}

    def launch(self, group: Group) -> None:
        run = self.runs.get(group.key)
        if run is None:
            life = self.lives.get(group.key)
            if life is None:
                raise BadInput(f"group {group.key}: the simulation knows no such work")
            self.twice += life.ended_s is not None
            run = self.runs[group.key] = SimulatedGroup(check(group), life)
            life.launches += 1
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
        self._events.after(self._misfortune.save_s() if works else END_S, self._leave, run, works)
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
        """Let machines be gone, all in one moment; return whom it hit."""
        self._tally.advance(self._events.now_s)
        hit: dict[str, SimulatedGroup] = {}
        for row in rows:
            if not self._fleet.up[row]:
                continue
            guests = self._guests[row]
            hit.update(guests)
            for run in guests.values():
                self._account(run, gone=True)
                for seat in run.seats:
                    if seat.row == row:
                        seat.place, seat.row, seat.turn = "lost", -1, seat.turn + 1
            self._unnoticed[row] = list(guests.values())
            guests.clear()
            self._fleet.fail(row)
        for run in hit.values():
            run.life.broken_s = run.life.broken_s or self._events.now_s
            self._settle(run)
        return list(hit.values())

    def notice(self, row: int) -> None:
        """The cluster says that a machine is gone, and looks for others for those that were on it."""
        if row not in self._unnoticed:
            return
        self._fleet.notice(row)
        for run in self._unnoticed.pop(row):
            for seat in run.seats:
                if seat.place == "lost":
                    seat.place, seat.since_s = "pending", self._events.now_s
            if self.runs.get(run.group.key) is run and not run.stopping:
                self._touch(run)
                self._place(run)

    def mend(self, row: int) -> None:
        self.notice(row)
        self._tally.advance(self._events.now_s)
        self._fleet.mend(row)
        self.changed = True

    def _resize(self, run: SimulatedGroup, count: int) -> None:
        if count == len(run.seats) and "pending" not in (seat.place for seat in run.seats):
            return
        self._touch(run)
        run.group = replace(run.group, count=count)
        running = run.number("running")
        while len(run.seats) > count:
            self._release(run, run.seats.pop())
        now_s = self._events.now_s
        run.seats += [SimulatedMember(since_s=now_s) for _ in range(count - len(run.seats))]
        if run.number("running") < running:
            self._settle(run)
        self._place(run)
        self._note_healed(run)

    def _place_waiting(self) -> None:
        """Try again for those without machines; by priority, then in the order in which they came."""
        for run in sorted(self._unplaced.values(), key=lambda run: -run.group.priority):
            self._place(run)

    def _place(self, run: SimulatedGroup) -> None:
        """Give machines to members that have none: to all of them, or to none."""
        pending = [seat for seat in run.seats if seat.place == "pending"]
        self._unplaced.pop(run.group.key, None)
        if pending and not run.stopping and run.phase != "over":
            group, need = run.group, vector(run.life.job.need)
            gang = self._fleet.choose(need, len(pending), group.placement, group.node_selector)
            if gang is None:
                self._unplaced[run.group.key] = run
            else:
                rows = (row for row, n in zip(gang.rows, gang.each, strict=True) for _ in range(n))
                self._seat(run, pending, [int(row) for row in rows])
        self._account(run)

    def _seat(self, run: SimulatedGroup, seats: list[SimulatedMember], rows: list[int]) -> None:
        self._touch(run)
        need = vector(run.life.job.need)
        for seat, row in zip(seats, rows, strict=True):
            self._fleet.take(row, need)
            self._guests[row][run.group.key] = run
            seat.place, seat.row, seat.since_s, seat.turn = "starting", row, self._events.now_s, seat.turn + 1
        turns = [(seat, seat.turn) for seat in seats]
        self._events.after(self._misfortune.launch_s(len(seats)), self._started, run, turns)

    def _started(self, run: SimulatedGroup, turns: list[tuple[SimulatedMember, int]]) -> None:
        if run.stopping:
            return
        for seat, turn in turns:
            if seat.turn == turn and seat.place == "starting":
                seat.place, seat.since_s = "running", self._events.now_s
        self._touch(run)
        self._settle(run)

    def _settle(self, run: SimulatedGroup) -> None:
        """Let work begin, go on or stop, by who is there."""
        self._tally.advance(self._events.now_s)
        if run.phase in ("idle", "warming", "working"):
            able = 0 < self._fewest(run) <= run.number("running")
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

    def _fewest(self, run: SimulatedGroup) -> int:
        least = run.life.job.least
        return run.group.count if least is None else min(least, run.group.count)

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
        running = [seat.row for seat in run.seats if seat.place == "running"]
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
        for seat in run.seats:
            self._release(run, seat)
            seat.place = "done"

    def _leave(self, run: SimulatedGroup, saved: bool) -> None:
        """The group is gone; what it had done is saved, unless a machine went before that."""
        self._touch(run)
        if saved:
            run.life.save()
        self._remove(run)

    def _remove(self, run: SimulatedGroup) -> None:
        while run.seats:
            self._release(run, run.seats.pop())
        self._unplaced.pop(run.group.key, None)
        del self.runs[run.group.key]

    def _release(self, run: SimulatedGroup, seat: SimulatedMember) -> None:
        if seat.row < 0:
            return
        self._account(run, gone=True)
        row, seat.row, seat.turn = seat.row, -1, seat.turn + 1
        self._fleet.give(row, vector(run.life.job.need))
        if all(other.row != row for other in run.seats):
            self._guests[row].pop(run.group.key, None)

    def _touch(self, run: SimulatedGroup) -> None:
        """Whoever looks next sees something new; time up to here is counted as it was."""
        self._tally.advance(self._events.now_s)
        run.standing, self.changed = None, True

    def _account(self, run: SimulatedGroup, *, gone: bool = False) -> None:
        """Tell the tally what the members of a run do from here on; nothing, when they are about to go."""
        need = vector(run.life.job.need)
        if run.counted:
            self._tally.change(need, run.counted, -1.0)
        run.counted = () if gone else self._members_by_kind(run)
        if run.counted:
            self._tally.change(need, run.counted, 1.0)

    def _members_by_kind(self, run: SimulatedGroup) -> tuple[float, ...]:
        """Count members with machines, in the order of tally.KINDS."""
        seated = sum(seat.row >= 0 for seat in run.seats)
        if not seated:
            return ()
        if run.phase == "working":
            running = [seat.row for seat in run.seats if seat.place == "running"]
            speed = min(self._fleet.speed[row] for row in running)
            return (len(running) * speed, len(running) * (1 - speed), seated - len(running))
        if run.phase == "leaving":
            return (0.0, 0.0, 0.0, 0.0, seated)
        if run.phase == "idle" and seated < len(run.seats):
            return (0.0, 0.0, 0.0, seated)
        return (0.0, 0.0, seated)

    def _standing(self, run: SimulatedGroup) -> GroupStatus:
        now_ = [
            Member(
                index,
                SHOWN.get(seat.place, seat.place),  # type: ignore[arg-type]
                exit_code=0 if seat.place == "done" else None,
                node=self._fleet.name(seat.row) if seat.row >= 0 else "",
                since_s=seat.since_s,
                reason="waits for a machine" if seat.place == "pending" else "",
            )
            for index, seat in enumerate(run.seats)
        ]
        run.standing = GroupStatus(run.group, tuple(now_), run.stopping)
        return run.standing
