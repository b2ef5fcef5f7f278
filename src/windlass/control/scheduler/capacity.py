"""The machines as columns: how many members each could take, and which of them take a gang.

Rows are machines in order of name. Each has its room at these levels:

    BARE    what nobody holds
    FREE    what nobody holds and nobody was promised
    SOON    FREE, and what those hold who were asked to leave
    LATER   all that is not held without end, less what was promised

FREE <= SOON <= LATER holds in every row. A promise of room that leaves SOON is taken from SOON and LATER, and
pushes FREE down to it: whoever comes after it can use only what the promise does not need. Rows that are
kept until LATER have no room for anybody else.

How many members of a kind a row can take is counted once for all rows, and afterwards only for rows that
changed. So a step costs as much as changed, not jobs times machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from windlass.control.scheduler.snapshot import MemberResources, SchedulableNode
from windlass.spec.cluster import Placement

BARE, FREE, SOON, LATER = range(4)

MOST = 1_000_000
"""Members that need nothing fit as often as this in one machine."""
REMEMBERED = 50_000
"""Sets of nodes whose rows are known."""
RANKS = 256
"""Rows are taken in order of how many members fit in them, up to this number."""
SLACK = 1e-6
"""A part of a core: sums of fractions are not exact, and half a core less is no refusal."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Asks that fit in the same machines: the room of a member, and the labels that a machine must have."""

    need: Vector
    labels: tuple[tuple[str, str], ...] = ()


def kind_of(need: MemberResources, labels: Mapping[str, str]) -> RequestKind:
    return RequestKind(vector(need), tuple(sorted(labels.items())) if labels else ())


def vector(room: MemberResources) -> Vector:
    return room.vector


class Columns(Sequence[SchedulableNode]):
    """The machines as a decision finds them.

    Whoever decides again and again keeps one and lets it follow the machines by `update` and `drop`; a
    machine that is gone keeps its row, without room, for the time when it comes back.
    """

    def __init__(self, machines: Iterable[SchedulableNode]) -> None:
        self.machines = sorted(machines, key=lambda machine: machine.name)
        self.rows = {machine.name: row for row, machine in enumerate(self.machines)}
        self.total = _table([machine.total for machine in self.machines])
        self.free = _table([machine.free for machine in self.machines])
        self.sum: Floats = self.total.sum(axis=1)
        self._there = np.ones(len(self.machines), dtype=bool)
        self._masks: dict[tuple[tuple[str, str], ...], NDArray[np.bool_]] = {}
        self._most: dict[RequestKind, int] = {}
        self._rows_at: dict[int, tuple[tuple[str, ...], Ints]] = {}

    def __len__(self) -> int:
        return len(self.machines)

    @overload
    def __getitem__(self, row: int) -> SchedulableNode: ...
    @overload
    def __getitem__(self, row: slice) -> list[SchedulableNode]: ...
    def __getitem__(self, row: int | slice) -> SchedulableNode | list[SchedulableNode]:
        return self.machines[row]

    def update(self, machine: SchedulableNode) -> bool:
        """Take over how a machine is now; False when it cannot be done, and all must be read again."""
        row = self.rows.get(machine.name)
        if row is None or self.machines[row].labels != machine.labels:
            return False
        if not self._there[row] or self.machines[row].total != machine.total:
            self._put(row, vector(machine.total), there=True)
        self.machines[row] = machine
        self.free[:, row] = vector(machine.free)
        return True

    def rows_at(self, nodes: tuple[str, ...]) -> Ints:
        """Return the row of each node, -1 for a strange one; remembered, because jobs stay where they are.

        They are found again by their identity: to hash the names of a large gang takes longer than all else.
        """
        known = self._rows_at.get(id(nodes))
        if known is None or known[0] is not nodes:
            if len(self._rows_at) > REMEMBERED:
                self._rows_at.clear()
            rows = np.array([self.rows.get(node, -1) for node in nodes], dtype=np.int64)
            known = self._rows_at[id(nodes)] = nodes, rows
        return known[1]

    def drop(self, name: str) -> None:
        """A machine takes no work any more."""
        row = self.rows[name]
        self._put(row, (0.0, 0.0, 0.0), there=False)
        self.machines[row] = SchedulableNode(
            name, MemberResources(), MemberResources(), self.machines[row].labels
        )
        self.free[:, row] = 0.0

    def _put(self, row: int, total: Vector, *, there: bool) -> None:
        self.total[:, row] = total
        self.sum = self.total.sum(axis=1)
        self._there[row] = there
        self._most.clear()
        for labels, mask in self._masks.items():
            mask[row] = there and self._has(self.machines[row], labels)

    def mask(self, labels: tuple[tuple[str, str], ...]) -> NDArray[np.bool_]:
        """Tell which machines are there and have the labels."""
        known = self._masks.get(labels)
        if known is None:
            has = np.array([self._has(machine, labels) for machine in self.machines], dtype=bool)
            known = self._masks[labels] = has & self._there
        return known

    @staticmethod
    def _has(machine: SchedulableNode, labels: tuple[tuple[str, str], ...]) -> bool:
        return all(machine.labels.get(key) == value for key, value in labels)

    def most(self, kind: RequestKind) -> int:
        """Return how many members the machines could take if nothing else ran."""
        known = self._most.get(kind)
        if known is None:
            known = int((count(self.total, kind.need) * self.mask(kind.labels)).sum())
            self._most[kind] = known
        return known


def _table(rooms: Sequence[MemberResources]) -> Floats:
    return np.array([vector(room) for room in rooms], dtype=np.float64).reshape(-1, 3).T.copy()


def count(room: Floats, need: Vector) -> Ints:
    """Return how often a need fits in each column of room."""
    fits = np.full(room.shape[1], float(MOST))
    for have, each in zip(room, need, strict=True):
        if each > 0:
            np.minimum(fits, np.floor((have + SLACK) / each), out=fits)
    whole: Ints = np.clip(fits, 0, MOST).astype(np.int64)
    return whole


@dataclass(slots=True)
class _Counted:
    fits: Ints
    sum: int
    seen: int
    """Changes of the ground that are in it."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Rows, and how many members each takes."""

    rows: Ints
    each: Ints


class Capacity:
    """The machines while one decision is made; what is given is taken, what is promised is kept."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        free = np.minimum(columns.free, columns.total)
        self.room = np.stack([free, free, free, columns.total])
        self._counted: dict[tuple[int, RequestKind], _Counted] = {}
        self._changes: list[Ints] = []

    def rows_of(self, nodes: Sequence[str]) -> list[int]:
        """Return where nodes stand; those that take no work are not on the ground."""
        rows = self.columns.rows
        return [rows[node] for node in nodes if node in rows]

    def nodes_of(self, gang: Gang) -> tuple[str, ...]:
        """Return the names of the rows, once for each member."""
        machines = self.columns.machines
        pairs = zip(gang.rows.tolist(), gang.each.tolist(), strict=True)
        return tuple(machines[row].name for row, each in pairs for _ in range(each))

    def fits(self, level: int, kind: RequestKind) -> Ints:
        """Return how many members of a kind each row can take."""
        return self._count(level, kind).fits

    def sum(self, level: int, kind: RequestKind) -> int:
        return self._count(level, kind).sum

    def _count(self, level: int, kind: RequestKind) -> _Counted:
        known = self._counted.get((level, kind))
        if known is None:
            fits = count(self.room[level], kind.need) * self.columns.mask(kind.labels)
            known = self._counted[level, kind] = _Counted(fits, int(fits.sum()), len(self._changes))
        elif known.seen < len(self._changes):
            fresh_rows = self._changes[known.seen :]
            rows = fresh_rows[0] if len(fresh_rows) == 1 else np.unique(np.concatenate(fresh_rows))
            fresh = count(self.room[level][:, rows], kind.need) * self.columns.mask(kind.labels)[rows]
            known.sum += int(fresh.sum()) - int(known.fits[rows].sum())
            known.fits[rows] = fresh
            known.seen = len(self._changes)
        return known

    def choose(self, level: int, kind: RequestKind, members: int, placement: Placement) -> Gang:
        """Choose rows for members that fit; those that need no GPU go first where no GPU is free."""
        strange = (self.room[FREE][2] > 0) & (kind.need[2] == 0)
        return place(self.fits(level, kind), strange, members, placement)

    def choose_oldest(self, kind: RequestKind, members: int, newest_s: Floats) -> Gang:
        """Choose rows that LATER take members: those in which nobody began lately.

        `newest_s` says when the last one began in each row. Once the rows are kept, nobody begins there, and
        whoever begins elsewhere makes that row worse: the rows chosen at any later look are rows in which
        nobody has begun since the first look, too.
        """
        later = self.fits(LATER, kind)
        rows = np.flatnonzero(later)
        order = np.lexsort((rows, newest_s[rows]))
        return _cut(rows[order], later[rows][order], members)

    def take(self, gang: Gang, kind: RequestKind) -> None:
        """Give room to a gang for good."""
        self._add(gang, kind.need, (BARE, FREE, SOON, LATER), sign=-1.0)

    def promise(self, gang: Gang, kind: RequestKind) -> None:
        """Give room to a gang that is there SOON."""
        self._add(gang, kind.need, (SOON, LATER), sign=-1.0)

    def keep(self, gang: Gang) -> None:
        """Let nobody begin in these rows, not even beside what they are kept for."""
        self.room[FREE:, :, gang.rows] = 0.0
        self._changes.append(gang.rows)

    def clear(self, gang: Gang, need: Vector, *, endless: bool) -> None:
        """Count on room of somebody who leaves."""
        self._add(gang, need, (SOON, LATER) if endless else (SOON,), sign=1.0)

    def hold_without_end(self, gang: Gang, need: Vector) -> None:
        """Count no more on room that somebody has who will not leave."""
        self.room[LATER][:, gang.rows] -= np.asarray(need)[:, None] * gang.each
        self._changes.append(gang.rows)

    def _add(self, gang: Gang, need: Vector, levels: Iterable[int], sign: float) -> None:
        rows = gang.rows
        amount = np.asarray(need)[:, None] * gang.each * sign
        part = self.room[:, :, rows]
        for level in levels:
            part[level] += amount
        for below in (SOON, FREE):
            np.minimum(part[below], part[below + 1], out=part[below])
        self.room[:, :, rows] = part
        self._changes.append(rows)


def gang_of(rows: Sequence[int]) -> Gang:
    """Return the gang of members that stand in these rows, a row for each of them."""
    found, each = np.unique(np.asarray(rows, dtype=np.int64), return_counts=True)
    return Gang(found, each)


def place(fits: Ints, strange: NDArray[np.bool_], members: int, placement: Placement) -> Gang:
    """Choose rows for members, of which as many as `fits` says fit in each, rows that are `strange` last.

    Rows with little room go first, so that large gangs find whole machines. Spread: as few members in one
    machine as possible; pack: in as few machines as possible.
    """
    rank = np.minimum(fits, RANKS - 1)
    rank += RANKS * (strange & (fits > 0))
    if placement == "pack":
        return _pack(fits, rank, members)
    return _one_each(rank, members) or _level(fits, rank, members)


def _one_each(rank: Ints, members: int) -> Gang | None:
    """Take a row for each member, in order of rank; None when there are fewer. Rank 0 has no room."""
    sums = np.cumsum(np.bincount(rank, minlength=2)[1:])
    if sums[-1] < members:
        return None
    last = int(np.searchsorted(sums, members)) + 1
    below = np.flatnonzero((rank > 0) & (rank < last))
    rows = np.concatenate([below, np.flatnonzero(rank == last)[: members - len(below)]])
    return Gang(rows, np.ones(members, dtype=np.int64))


def _level(fits: Ints, rank: Ints, members: int) -> Gang:
    """Fill all rows to one level, and some of them to one more."""
    rows = np.flatnonzero(fits)
    rows = rows[np.argsort(rank[rows], kind="stable")]
    low, high = 1, int(fits.max())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if np.minimum(fits, middle).sum() >= members else (middle + 1, high)
    least = np.minimum(fits[rows], low - 1)
    further = np.minimum(fits[rows], low) - least
    each = least + further * (np.cumsum(further) <= members - int(least.sum()))
    return Gang(rows[each > 0], each[each > 0])


def _pack(fits: Ints, rank: Ints, members: int) -> Gang:
    """Take the tightest row that holds all members, or the fewest rows."""
    whole = np.flatnonzero(fits >= members)
    if len(whole):
        row = whole[np.argmin(rank[whole])]
        return Gang(np.array([row]), np.array([members]))
    rows = np.flatnonzero(fits)
    rows = rows[np.lexsort((-fits[rows], rank[rows] >= RANKS))]
    return _cut(rows, fits[rows], members)


def _cut(rows: Ints, fit: Ints, members: int) -> Gang:
    """Fill rows in their order until all members have a place."""
    sums = np.cumsum(fit)
    last = int(np.searchsorted(sums, members))
    each = fit[: last + 1].copy()
    each[-1] -= max(0, int(sums[last]) - members)
    return Gang(rows[: last + 1], each)
