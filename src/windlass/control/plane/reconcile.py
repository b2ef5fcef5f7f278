"""The loop that keeps what runs equal to what is asked for.

    survey the backend -> what became of whom -> decide about the queue -> write it, fenced -> launch and stop

Input: what is written (leader_store.py) and what is seen (cluster.backend). Output: moves in the ledger,
deeds at the backend. Nothing else is remembered that matters: a loop that begins anew, here or elsewhere,
does what the last one left undone, because every deed follows from what is written and seen (actions.py),
never from what has just happened. When the backend does not answer, nothing is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from windlass.cluster.backend import ClusterBackend, ClusterState, Group, GroupStatus, Node
from windlass.control.plane.actions import Action, action_for, is_settled, retry_action
from windlass.control.plane.job_cache import JobCache, NodeCache
from windlass.control.plane.job_store import QueuePosition
from windlass.control.plane.leader_store import LeaderStore, Transition
from windlass.control.plane.observe import next_phase
from windlass.control.plane.queued_job import JobEntry
from windlass.control.scheduler.fair_share import dominant_shares, fade
from windlass.control.scheduler.snapshot import MIN_RUN_S, JobDecision, Snapshot, TenantQuota
from windlass.spec.errors import AskedWrongly, InUse, NotFound, ProcessFailed

OWNED_BY = "WINDLASS_PLANE"
"""Environment of every member that a control plane launches: which one, so that no other's are stopped."""
SHARES_EVERY_S = 1.0
WAITS_EVERY_S = 1.0
"""For reasons of waiting to be told: they change with every step, and people read them."""
USAGE_EVERY_S = 60.0
AGAIN_S = 5.0
"""For a group to go or to begin, before the backend is asked for it once more."""
MAX_DEEDS_S = 5.0
"""For deeds in one step; the others are done in the next one, when more may have changed."""


@dataclass
class ReconcileResult:
    """What one step did."""

    moves: Sequence[Transition] = ()
    launched: int = 0
    stopped: int = 0
    decide_s: float = 0.0
    waiting: int = 0
    placed: int = 0
    trouble: str = ""
    """Why nothing, or not all, was done, in plain words."""


@dataclass
class _Due:
    """When something was done last, by the clock of the loop."""

    every_s: float
    last_s: float = field(default=float("-inf"))

    def now(self, now_s: float) -> bool:
        if now_s - self.last_s < self.every_s:
            return False
        self.last_s = now_s
        return True


class Reconciler:
    """One term of leadership over one backend.

    Whoever calls `step` makes another one after any exception, and when leadership was lost and came back.
    """

    def __init__(
        self,
        ledger: LeaderStore,
        backend: ClusterBackend,
        group_of: Callable[[JobEntry], Group],
        decide: Callable[[Snapshot], Sequence[JobDecision]],
        *,
        identity: str = "plane",
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = lambda: True,
        min_run_s: float = MIN_RUN_S,
        unseen: tuple[Node, ...] = (),
    ) -> None:
        """`leads` is asked before every deed: a loop that was frozen must not go on where it was.

        `unseen` stands for the machines of a cluster that lets nobody look at them.
        """
        self._ledger, self._backend = ledger, backend
        self._group_of, self._decide = group_of, decide
        self._identity, self._clock, self._leads = identity, clock, leads
        self._min_run_s, self._unseen = min_run_s, unseen
        self.book, self._machines = JobCache(), NodeCache()
        self._seen: dict[str, GroupStatus] = {}
        self._same: dict[int, str] = {}
        """The keys of these very objects: one that comes again is as it was."""
        self._strays: set[str] = set()
        """Groups of ours that no job wants."""
        self._unsettled: set[str] = set()
        """Groups of ours with which something is under way."""
        self._todo: set[str] = set()
        """Jobs for which something remains to be done at the backend."""
        self._refused: dict[str, str] = {}
        self._shares: dict[str, TenantQuota] = {}
        self._used: dict[str, float] | None = None
        self._counted_s: float | None = None
        """Up to when usage is counted."""
        self._waits: dict[str, QueuePosition] = {}
        self._shares_due, self._waits_due = _Due(SHARES_EVERY_S), _Due(WAITS_EVERY_S)
        self._usage_due, self._again_due = _Due(USAGE_EVERY_S), _Due(AGAIN_S)

    def step(self) -> ReconcileResult:
        """Do what is to be done now. Deposed when another one leads."""
        try:
            survey = self._backend.survey()
        except ProcessFailed as error:
            return ReconcileResult(
                trouble=error.message, waiting=len(self.book.waiting), placed=len(self.book.placed)
            )
        touched = self._take_in(survey)
        now_s = self._clock()  # a look around may take long, and nothing is decided before it was asked for
        observed = self._observed(touched, now_s)
        began_s = time.perf_counter()
        decided, waits = self._decided(survey, now_s)
        step = ReconcileResult(decide_s=time.perf_counter() - began_s)
        step.moves = [*observed, *decided]
        self._write(step.moves)
        touched.update(move.entry.uid for move in step.moves)
        self._act(touched, step, again=self._again_due.now(now_s))
        self._tell(waits, now_s)
        step.waiting, step.placed = len(self.book.waiting), len(self.book.placed)
        return step

    def _take_in(self, survey: ClusterState) -> set[str]:
        """Compare with the last step; return the jobs of which something is written or seen anew."""
        book = self.book
        touched = book.read(self._ledger)
        keys = list(map(self._same.get, map(id, survey.groups)))
        for at in [at for at, known in enumerate(keys) if known is None]:
            standing = survey.groups[at]
            key = keys[at] = standing.group.key
            if self._seen.get(key) == standing:
                continue
            if (uid := book.by_group.get(key)) is not None:
                book.see(standing)
                touched.add(uid)
            elif standing.group.environment.get(OWNED_BY) == self._identity:
                self._strays.add(key)
            else:
                continue
            (self._unsettled.discard if is_settled(standing) else self._unsettled.add)(key)
        there = {key: standing for key, standing in zip(keys, survey.groups, strict=True) if key is not None}
        for key in self._seen.keys() - there.keys():
            self._strays.discard(key)
            self._unsettled.discard(key)
            book.lose(key)
            if (uid := book.by_group.get(key)) is not None:
                touched.add(uid)
        self._seen, self._same = there, dict(zip(map(id, there.values()), there, strict=True))
        return touched | self._todo | book.wishes

    def _observed(self, touched: Iterable[str], now_s: float) -> list[Transition]:
        moves = []
        for uid in touched:
            entry = self.book.entries.get(uid)
            if entry is None:
                continue
            if (refused := self._refused.pop(uid, None)) is not None and entry.phase == "admitted":
                after = entry.now("failed", refused, now_s)
            else:
                after = next_phase(entry, self._seen.get(entry.group_key), now_s)
            if after is not entry:
                moves.append(Transition(after, now_s, _words(after)))
                self.book.put(after)
        return moves

    def _decided(
        self, survey: ClusterState, now_s: float
    ) -> tuple[list[Transition], dict[str, QueuePosition]]:
        book = self.book
        view = Snapshot(
            now_s=now_s,
            machines=self._machines.of(survey.nodes or self._unseen),
            waiting=list(book.waiting.values()),
            placed=list(book.placed.values()),
            shares=self._shares_now(now_s),
            min_run_s=self._min_run_s,
        )
        if self._usage_due.now(now_s):
            self._count_usage(view)
        moves, waits = [], dict[str, QueuePosition]()
        for decision in self._decide(view):
            entry = book.entries[book.by_key[decision.key]]
            if decision.what == "hold":
                waits[entry.uid] = QueuePosition(len(waits) + 1, decision.reason)
            else:
                moves.append(_move(entry, decision, now_s))
        return moves, waits

    def _write(self, moves: Sequence[Transition]) -> None:
        """Write first, then act: whoever comes after us finds what we were about to do."""
        if moves:
            self.book.moved(moves, self._ledger.apply(moves))

    def _act(self, touched: Iterable[str], step: ReconcileResult, *, again: bool) -> None:
        until = time.monotonic() + MAX_DEEDS_S
        self._todo, deeds = set(), list[tuple[Action, JobEntry | None, str]]()
        for uid in touched:
            entry = self.book.entries.get(uid)
            if entry is None:
                continue
            deed = action_for(entry, self._seen.get(entry.group_key))
            if deed is not None:
                self._todo.add(uid)
                deeds.append((deed, entry, entry.group_key))
        for move in step.moves:
            if move.entry.over and move.entry.group_key in self._seen:
                self._strays.add(move.entry.group_key)
        deeds += [("stop", None, key) for key in self._strays if not self._seen[key].stopping]
        if again:
            deeds += self._repeated({key for _, _, key in deeds})
        deeds.sort(key=lambda deed: (deed[0] == "launch", deed[2]))  # room is made before it is taken
        for what, entry, key in deeds:
            if time.monotonic() > until or not self._leads() or not self._do(what, entry, key, step):
                return

    def _repeated(self, done: set[str]) -> Iterator[tuple[Action, JobEntry | None, str]]:
        for key in self._unsettled - done:
            uid = self.book.by_group.get(key)
            entry = self.book.entries[uid] if uid is not None else None
            yield retry_action(entry, self._seen[key]), entry, key

    def _do(self, deed: Action, entry: JobEntry | None, key: str, step: ReconcileResult) -> bool:
        """Do one deed; return False when the backend does not answer, so that no other can be done."""
        try:
            if deed == "stop":
                self._backend.stop(key)
                step.stopped += 1
            else:
                assert entry is not None
                self._launch(entry)
                step.launched += 1
        except ProcessFailed as error:
            step.trouble = error.message
            return False
        except InUse as error:
            step.trouble = error.message  # it is being stopped, or another has its name; look again
        except NotFound as error:
            step.trouble = error.message  # gone in this very moment
        except AskedWrongly as error:
            if entry is not None:
                self._refused[entry.uid] = str(error)
        return True

    def _launch(self, entry: JobEntry) -> None:
        group = self._group_of(entry)
        environment = {**group.environment, OWNED_BY: self._identity}
        self._backend.launch(replace(group, environment=environment, count=entry.members))

    def _shares_now(self, now_s: float) -> dict[str, TenantQuota]:
        if self._shares_due.now(now_s):
            told = self._ledger.shares()
            if self._used is None:
                self._used = {tenant: share.used for tenant, share in told.items()}
            used = self._used
            self._shares = {t: replace(share, used=used.get(t, 0.0)) for t, share in told.items()}
        return self._shares

    def _count_usage(self, view: Snapshot) -> None:
        """Note what tenants have held since the last count."""
        assert self._used is not None
        passed_s, self._counted_s = view.now_s - (self._counted_s or view.now_s), view.now_s
        held = dominant_shares(view)
        for tenant in {*held, *self._used}:
            self._used[tenant] = fade(self._used.get(tenant, 0.0), held.get(tenant, 0.0), passed_s)
            known = self._shares.get(tenant, TenantQuota(tenant))
            self._shares[tenant] = replace(known, used=self._used[tenant])
        if self._used:
            self._ledger.tell_usage(self._used, view.now_s)

    def _tell(self, waits: dict[str, QueuePosition], now_s: float) -> None:
        """Tell owners what they wait for, when it is another thing than before."""
        if not self._waits_due.now(now_s):
            return
        told: dict[str, QueuePosition | None] = {u: w for u, w in waits.items() if self._waits.get(u) != w}
        told |= dict.fromkeys(self._waits.keys() - waits.keys())
        if told:
            self._ledger.tell_waits(told)
        self._waits = waits


def _move(entry: JobEntry, decision: JobDecision, now_s: float) -> Transition:
    if decision.what == "admit":
        more = {"members": decision.members, "attempts": entry.attempts + 1, "placed_s": now_s}
        after = entry.now("admitted", decision.reason, now_s, **more)
        return Transition(after, now_s, f"admitted with {_count(decision.members)}: {decision.reason}")
    if decision.what == "resize":
        after = replace(entry, members=decision.members, placed_s=now_s)
        return Transition(after, now_s, f"goes on with {_count(decision.members)}: {decision.reason}")
    after = entry.now("preempting", decision.reason, now_s)
    return Transition(after, now_s, f"saves what it has and makes room: {decision.reason}")


def _words(entry: JobEntry) -> str:
    told = {
        "running": "runs",
        "queued": "has saved and waits again",
        "admitted": "is launched again",
        "stopping": "is being stopped",
    }.get(entry.phase, entry.phase)
    return f"{told}: {entry.reason}" if entry.reason and entry.phase != "queued" else told


def _count(members: int) -> str:
    return "1 member" if members == 1 else f"{members} members"
