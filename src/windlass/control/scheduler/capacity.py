"""Cluster capacity as columns: how many members of a gang each node can take, and which nodes to choose.

Rows are nodes in order of name. Each row has its capacity at four levels:

    UNUSED        no job holds it
    AVAILABLE     no job holds it and none was promised it
    AFTER_DRAIN   AVAILABLE plus what draining jobs still hold
    EVENTUAL      all that is not held by endless jobs (services), less promises

AVAILABLE <= AFTER_DRAIN <= EVENTUAL holds in every row. Promising capacity that is still draining subtracts
it from AFTER_DRAIN and EVENTUAL and caps AVAILABLE at the result: a later job can use only what the promise
does not need. Reserved rows have no capacity for any other job at these three levels.

How many members of a kind fit in a row is counted once for all rows, and afterwards only for rows that
changed. So the cost of a step depends on what changed, not on jobs times nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from windlass.control.scheduler.snapshot import MemberResources, SchedulableNode
from windlass.spec.cluster import Placement

UNUSED, AVAILABLE, AFTER_DRAIN, EVENTUAL = range(4)

MAX_PER_NODE = 1_000_000
"""How many members that need nothing fit in one node."""
REMEMBERED = 50_000
"""Node tuples whose rows are cached."""
RANKS = 256
"""Rows are ordered by how many members fit in them; larger counts rank as this one."""
SLACK = 1e-6
"""Tolerance in cores: sums of fractions are not exact and must not cause a refusal."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Jobs that fit in the same nodes: what a member needs, and the labels that a node must have."""

    need: Vector
    labels: tuple[tuple[str, str], ...] = ()


def kind_of(need: MemberResources, labels: Mapping[str, str]) -> RequestKind:
    return RequestKind(vector(need), tuple(sorted(labels.items())) if labels else ())


def vector(room: MemberResources) -> Vector:
    return room.vector


class Columns(Sequence[SchedulableNode]):
    """The nodes at the start of a scheduling cycle.

    The reconcile loop keeps one instance between cycles and applies changes by `update` and `drop`. A node
    that is gone keeps its row, with no capacity, in case it comes back.
    """

    def __init__(self, machines: Iterable[SchedulableNode]) -> None:
        self.machines = sorted(machines, key=lambda machine: machine.name)
        self.rows = {machine.name: row for row, machine in enumerate(self.machines)}
        self.total = _table([machine.total for machine in self.machines])
        self.free = _table([machine.free for machine in self.machines])
        self.sum: Floats = self.total.sum(axis=1)
        self._present = np.ones(len(self.machines), dtype=bool)
        self._masks: dict[tuple[tuple[str, str], ...], NDArray[np.bool_]] = {}
        self._max_members: dict[RequestKind, int] = {}
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
        """Apply the current state of a node; False when the columns must be built again."""
        row = self.rows.get(machine.name)
        if row is None or self.machines[row].labels != machine.labels:
            return False
        if not self._present[row] or self.machines[row].total != machine.total:
            self._put(row, vector(machine.total), present=True)
        self.machines[row] = machine
        self.free[:, row] = vector(machine.free)
        return True

    def rows_at(self, nodes: tuple[str, ...]) -> Ints:
        """Return the row of each node, -1 for an unknown one; cached, because jobs stay on their nodes.

        The cache key is the identity of the tuple: hashing the names of a large gang would dominate the cost.
        """
        known = self._rows_at.get(id(nodes))
        if known is None or known[0] is not nodes:
            if len(self._rows_at) > REMEMBERED:
                self._rows_at.clear()
            rows = np.array([self.rows.get(node, -1) for node in nodes], dtype=np.int64)
            known = self._rows_at[id(nodes)] = nodes, rows
        return known[1]

    def drop(self, name: str) -> None:
        """Mark a node as taking no more work."""
        row = self.rows[name]
        self._put(row, (0.0, 0.0, 0.0), present=False)
        self.machines[row] = SchedulableNode(
            name, MemberResources(), MemberResources(), self.machines[row].labels
        )
        self.free[:, row] = 0.0

    def _put(self, row: int, total: Vector, *, present: bool) -> None:
        self.total[:, row] = total
        self.sum = self.total.sum(axis=1)
        self._present[row] = present
        self._max_members.clear()
        for labels, mask in self._masks.items():
            mask[row] = present and self._has(self.machines[row], labels)

    def mask(self, labels: tuple[tuple[str, str], ...]) -> NDArray[np.bool_]:
        """Return which nodes are present and have the labels."""
        known = self._masks.get(labels)
        if known is None:
            has = np.array([self._has(machine, labels) for machine in self.machines], dtype=bool)
            known = self._masks[labels] = has & self._present
        return known

    @staticmethod
    def _has(machine: SchedulableNode, labels: tuple[tuple[str, str], ...]) -> bool:
        return all(machine.labels.get(key) == value for key, value in labels)

    def max_members(self, kind: RequestKind) -> int:
        """Return how many members would fit if nothing else ran."""
        known = self._max_members.get(kind)
        if known is None:
            known = int((count(self.total, kind.need) * self.mask(kind.labels)).sum())
            self._max_members[kind] = known
        return known


def _table(rooms: Sequence[MemberResources]) -> Floats:
    return np.array([vector(room) for room in rooms], dtype=np.float64).reshape(-1, 3).T.copy()


def count(room: Floats, need: Vector) -> Ints:
    """Return how many times a need fits in each column."""
    fits = np.full(room.shape[1], float(MAX_PER_NODE))
    for have, each in zip(room, need, strict=True):
        if each > 0:
            np.minimum(fits, np.floor((have + SLACK) / each), out=fits)
    whole: Ints = np.clip(fits, 0, MAX_PER_NODE).astype(np.int64)
    return whole


@dataclass(slots=True)
class _Counted:
    fits: Ints
    sum: int
    seen: int
    """How many changes of the capacity it includes."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Rows, and how many members are placed in each."""

    rows: Ints
    each: Ints


class Capacity:
    """The remaining capacity during one scheduling cycle."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        free = np.minimum(columns.free, columns.total)
        self.room = np.stack([free, free, free, columns.total])
        self._counted: dict[tuple[int, RequestKind], _Counted] = {}
        self._changes: list[Ints] = []

    def rows_of(self, nodes: Sequence[str]) -> list[int]:
        """Return the rows of nodes; nodes that take no work have none."""
        rows = self.columns.rows
        return [rows[node] for node in nodes if node in rows]

    def nodes_of(self, gang: Gang) -> tuple[str, ...]:
        """Return the node names, one for each member."""
        machines = self.columns.machines
        pairs = zip(gang.rows.tolist(), gang.each.tolist(), strict=True)
        return tuple(machines[row].name for row, each in pairs for _ in range(each))

    def fits(self, level: int, kind: RequestKind) -> Ints:
        """Return how many members of a kind fit in each row."""
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
        """Choose rows for members that fit; members without a GPU prefer nodes without a free GPU."""
        avoid = (self.room[AVAILABLE][2] > 0) & (kind.need[2] == 0)
        return place(self.fits(level, kind), avoid, members, placement)

    def choose_oldest(self, kind: RequestKind, members: int, newest_s: Floats) -> Gang:
        """Choose rows that fit the members EVENTUAL: those whose newest job started longest ago.

        `newest_s` is when the last job started in each row. No job starts in reserved rows, and a job that
        starts elsewhere makes its row a worse choice. So every later call chooses rows in which no job has
        started since the first call.
        """
        eventual = self.fits(EVENTUAL, kind)
        rows = np.flatnonzero(eventual)
        order = np.lexsort((rows, newest_s[rows]))
        return _cut(rows[order], eventual[rows][order], members)

    def take(self, gang: Gang, kind: RequestKind) -> None:
        """Subtract the capacity of an admitted gang."""
        self._add(gang, kind.need, (UNUSED, AVAILABLE, AFTER_DRAIN, EVENTUAL), sign=-1.0)

    def promise(self, gang: Gang, kind: RequestKind) -> None:
        """Promise a gang capacity that is still draining."""
        self._add(gang, kind.need, (AFTER_DRAIN, EVENTUAL), sign=-1.0)

    def keep(self, gang: Gang) -> None:
        """Reserve whole rows: no other job may start in them."""
        self.room[AVAILABLE:, :, gang.rows] = 0.0
        self._changes.append(gang.rows)

    def clear(self, gang: Gang, need: Vector, *, endless: bool) -> None:
        """Add the capacity of a gang that is draining."""
        self._add(gang, need, (AFTER_DRAIN, EVENTUAL) if endless else (AFTER_DRAIN,), sign=1.0)

    def hold_without_end(self, gang: Gang, need: Vector) -> None:
        """Treat this capacity as never becoming free (services do not finish)."""
        self.room[EVENTUAL][:, gang.rows] -= np.asarray(need)[:, None] * gang.each
        self._changes.append(gang.rows)

    def _add(self, gang: Gang, need: Vector, levels: Iterable[int], sign: float) -> None:
        rows = gang.rows
        amount = np.asarray(need)[:, None] * gang.each * sign
        part = self.room[:, :, rows]
        for level in levels:
            part[level] += amount
        for below in (AFTER_DRAIN, AVAILABLE):
            np.minimum(part[below], part[below + 1], out=part[below])
        self.room[:, :, rows] = part
        self._changes.append(rows)


def gang_of(rows: Sequence[int]) -> Gang:
    """Return the gang of members in these rows, one entry for each member."""
    found, each = np.unique(np.asarray(rows, dtype=np.int64), return_counts=True)
    return Gang(found, each)


def place(fits: Ints, avoid: NDArray[np.bool_], members: int, placement: Placement) -> Gang:
    """Choose rows for members; `fits` says how many fit in each row, rows marked `avoid` come last.

    Rows with little capacity go first, so that large gangs find whole nodes. Spread: as few members per node
    as possible; pack: as few nodes as possible.
    """
    rank = np.minimum(fits, RANKS - 1)
    rank += RANKS * (avoid & (fits > 0))
    if placement == "pack":
        return _pack(fits, rank, members)
    return _one_each(rank, members) or _level(fits, rank, members)


def _one_each(rank: Ints, members: int) -> Gang | None:
    """Take a row for each member, in order of rank; None when there are too few. Rank 0 does not fit."""
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
    floor = np.minimum(fits[rows], low - 1)
    further = np.minimum(fits[rows], low) - floor
    each = floor + further * (np.cumsum(further) <= members - int(floor.sum()))
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
    """Fill rows in their order until all members are placed."""
    sums = np.cumsum(fit)
    last = int(np.searchsorted(sums, members))
    each = fit[: last + 1].copy()
    each[-1] -= max(0, int(sums[last]) - members)
    return Gang(rows[: last + 1], each)
