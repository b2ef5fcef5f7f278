"""The reconcile loop: makes the cluster match the submitted jobs.

    1. desired    the jobs as recorded              JobCache.read
    2. observed   the groups on the cluster         ClusterBackend.survey
    3. diff       phases that changed, decisions    next_phase, decide, action_for
    4. apply      write transitions, then act       LeaderStore.apply, launch and stop

The loop keeps no other state that matters: one that starts over, here or in another process, does what the
last one left undone, because every action follows from what is recorded and observed (`actions`), never from
a past event. When the backend does not answer, nothing is decided.
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
"""Environment variable of every member: which control plane launched it, so that no other stops it."""
SHARES_EVERY_S = 1.0
WAITS_EVERY_S = 1.0
"""Between writes of the queue positions: they change with every step, and people read them."""
USAGE_EVERY_S = 60.0
AGAIN_S = 5.0
"""For a group to start or stop, before the call to the backend is repeated."""
MAX_APPLY_S = 5.0
"""For actions in one step; the others follow in the next step, when more may have changed."""


@dataclass
class ReconcileResult:
    """The result of one step."""

    transitions: Sequence[Transition] = ()
    stopped: int = 0
    decide_s: float = 0.0
    waiting: int = 0
    placed: int = 0
    trouble: str = ""
    """Why not everything was done, as a sentence; empty if it was."""


@dataclass
class _Due:
    """A periodic task: when it was last done, by the clock of the loop."""

    every_s: float
    last_s: float = field(default=float("-inf"))

    def now(self, now_s: float) -> bool:
        if now_s - self.last_s < self.every_s:
            return False
        self.last_s = now_s
        return True


class Reconciler:
    """Reconciles one backend during one term of leadership.

    The caller makes a new one after any exception of `step`, and when it becomes the leader again.
    """

    def __init__(
        self,
        store: LeaderStore,
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
        """`leads` is called before every action: a process that was suspended must not continue blindly.

        `unseen` replaces the nodes of a cluster that does not allow listing them.
        """
        self._store, self._backend = store, backend
        self._group_of, self._decide = group_of, decide
        self._identity, self._clock, self._leads = identity, clock, leads
        self._min_run_s, self._unseen = min_run_s, unseen
        self.jobs, self._machines = JobCache(), NodeCache()
        self._seen: dict[str, GroupStatus] = {}
        self._same: dict[int, str] = {}
        """Group keys by object identity: the same object again means nothing changed."""
        self._orphans: set[str] = set()
        """Groups that this control plane launched and no job wants any more."""
        self._unsettled: set[str] = set()
        """Groups of this control plane that are starting or stopping."""
        self._todo: set[str] = set()
        """Jobs with actions that remain to be done at the backend."""
        self._refused: dict[str, str] = {}
        self._shares: dict[str, TenantQuota] = {}
        self._used: dict[str, float] | None = None
        self._counted_s: float | None = None
        """Until when usage was counted."""
        self._waits: dict[str, QueuePosition] = {}
        self._shares_due, self._waits_due = _Due(SHARES_EVERY_S), _Due(WAITS_EVERY_S)
        self._usage_due, self._again_due = _Due(USAGE_EVERY_S), _Due(AGAIN_S)

    def step(self) -> ReconcileResult:
        """Run one step. Raises LostLeadership when another process leads."""
        try:
            survey = self._backend.survey()
        except ProcessFailed as error:
            return ReconcileResult(
                trouble=error.message, waiting=len(self.jobs.waiting), placed=len(self.jobs.placed)
            )
        # 1. desired and 2. observed
        touched = self._changed(survey)
        now_s = self._clock()  # after the survey, which may take long: no decision predates its submission
        # 3. diff
        observed = self._phase_transitions(touched, now_s)
        began_s = time.perf_counter()
        decided, waits = self._scheduled(survey, now_s)
        step = ReconcileResult(decide_s=time.perf_counter() - began_s)
        step.transitions = [*observed, *decided]
        # 4. apply
        self._write_transitions(step.transitions)
        touched.update(transition.entry.uid for transition in step.transitions)
        self._apply(touched, step, again=self._again_due.now(now_s))
        self._write_positions(waits, now_s)
        step.waiting, step.placed = len(self.jobs.waiting), len(self.jobs.placed)
        return step

    def _changed(self, survey: ClusterState) -> set[str]:
        """Return the jobs whose record or observed group changed since the last step."""
        jobs = self.jobs
        touched = jobs.read(self._store)
        keys = list(map(self._same.get, map(id, survey.groups)))
        for at in [at for at, known in enumerate(keys) if known is None]:
            status = survey.groups[at]
            key = keys[at] = status.group.key
            if self._seen.get(key) == status:
                continue
            if (uid := jobs.by_group.get(key)) is not None:
                jobs.see(status)
                touched.add(uid)
            elif status.group.environment.get(OWNED_BY) == self._identity:
                self._orphans.add(key)
            else:
                continue
            (self._unsettled.discard if is_settled(status) else self._unsettled.add)(key)
        found = {key: status for key, status in zip(keys, survey.groups, strict=True) if key is not None}
        for key in self._seen.keys() - found.keys():
            self._orphans.discard(key)
            self._unsettled.discard(key)
            jobs.lose(key)
            if (uid := jobs.by_group.get(key)) is not None:
                touched.add(uid)
        self._seen, self._same = found, dict(zip(map(id, found.values()), found, strict=True))
        return touched | self._todo | jobs.stopping

    def _phase_transitions(self, touched: Iterable[str], now_s: float) -> list[Transition]:
        """Return the jobs whose phase follows from what was observed."""
        transitions = []
        for uid in touched:
            entry = self.jobs.entries.get(uid)
            if entry is None:
                continue
            if (refused := self._refused.pop(uid, None)) is not None and entry.phase == "admitted":
                after = entry.now("failed", refused, now_s)
            else:
                after = next_phase(entry, self._seen.get(entry.group_key), now_s)
            if after is not entry:
                transitions.append(Transition(after, now_s, _event_text(after)))
                self.jobs.put(after)
        return transitions

    def _scheduled(
        self, survey: ClusterState, now_s: float
    ) -> tuple[list[Transition], dict[str, QueuePosition]]:
        """Run the scheduler; return the transitions, and the positions of the jobs that keep waiting."""
        jobs = self.jobs
        snapshot = Snapshot(
            now_s=now_s,
            machines=self._machines.of(survey.nodes or self._unseen),
            waiting=list(jobs.waiting.values()),
            placed=list(jobs.placed.values()),
            shares=self._shares_now(now_s),
            min_run_s=self._min_run_s,
        )
        if self._usage_due.now(now_s):
            self._count_usage(snapshot)
        transitions, waits = [], dict[str, QueuePosition]()
        for decision in self._decide(snapshot):
            entry = jobs.entries[jobs.by_key[decision.key]]
            if decision.what == "hold":
                waits[entry.uid] = QueuePosition(len(waits) + 1, decision.reason)
            else:
                transitions.append(_transition(entry, decision, now_s))
        return transitions, waits

    def _write_transitions(self, transitions: Sequence[Transition]) -> None:
        """Write first, then act: after a crash the next leader finds what was intended."""
        if transitions:
            self.jobs.written(transitions, self._store.apply(transitions))

    def _apply(self, touched: Iterable[str], step: ReconcileResult, *, again: bool) -> None:
        """Stop and launch groups; `again` repeats the actions of groups that are starting or stopping."""
        until = time.monotonic() + MAX_APPLY_S
        self._todo, actions = set(), list[tuple[Action, JobEntry | None, str]]()
        for uid in touched:
            entry = self.jobs.entries.get(uid)
            if entry is None:
                continue
            action = action_for(entry, self._seen.get(entry.group_key))
            if action is not None:
                self._todo.add(uid)
                actions.append((action, entry, entry.group_key))
        for transition in step.transitions:
            if transition.entry.over and transition.entry.group_key in self._seen:
                self._orphans.add(transition.entry.group_key)
        actions += [("stop", None, key) for key in self._orphans if not self._seen[key].stopping]
        if again:
            actions += self._repeats({key for _, _, key in actions})
        actions.sort(
            key=lambda action: (action[0] == "launch", action[2])
        )  # stops free capacity for launches
        for what, entry, key in actions:
            if time.monotonic() > until or not self._leads() or not self._do(what, entry, key, step):
                return

    def _repeats(self, done: set[str]) -> Iterator[tuple[Action, JobEntry | None, str]]:
        for key in self._unsettled - done:
            uid = self.jobs.by_group.get(key)
            entry = self.jobs.entries[uid] if uid is not None else None
            yield retry_action(entry, self._seen[key]), entry, key

    def _do(self, action: Action, entry: JobEntry | None, key: str, step: ReconcileResult) -> bool:
        """Do one action; return False when the backend does not answer, so that no other can be done."""
        try:
            if action == "stop":
                self._backend.stop(key)
                step.stopped += 1
            else:
                assert entry is not None
                self._launch(entry)
        except ProcessFailed as error:
            step.trouble = error.message
            return False
        except InUse as error:
            step.trouble = error.message  # still stopping, or its name is taken; a later step retries
        except NotFound as error:
            step.trouble = error.message  # it vanished meanwhile
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
            recorded = self._store.shares()
            if self._used is None:
                self._used = {tenant: share.used for tenant, share in recorded.items()}
            used = self._used
            self._shares = {t: replace(share, used=used.get(t, 0.0)) for t, share in recorded.items()}
        return self._shares

    def _count_usage(self, snapshot: Snapshot) -> None:
        """Add what tenants have held since the last count."""
        assert self._used is not None
        passed_s, self._counted_s = snapshot.now_s - (self._counted_s or snapshot.now_s), snapshot.now_s
        held = dominant_shares(snapshot)
        for tenant in {*held, *self._used}:
            self._used[tenant] = fade(self._used.get(tenant, 0.0), held.get(tenant, 0.0), passed_s)
            known = self._shares.get(tenant, TenantQuota(tenant))
            self._shares[tenant] = replace(known, used=self._used[tenant])
        if self._used:
            self._store.set_usage(self._used, snapshot.now_s)

    def _write_positions(self, waits: dict[str, QueuePosition], now_s: float) -> None:
        """Write the queue positions and reasons that changed."""
        if not self._waits_due.now(now_s):
            return
        changed: dict[str, QueuePosition | None] = {u: w for u, w in waits.items() if self._waits.get(u) != w}
        changed |= dict.fromkeys(self._waits.keys() - waits.keys())
        if changed:
            self._store.set_queue_positions(changed)
        self._waits = waits


def _transition(entry: JobEntry, decision: JobDecision, now_s: float) -> Transition:
    if decision.what == "admit":
        more = {"members": decision.members, "attempts": entry.attempts + 1, "placed_s": now_s}
        after = entry.now("admitted", decision.reason, now_s, **more)
        return Transition(after, now_s, f"admitted with {_count(decision.members)}: {decision.reason}")
    if decision.what == "resize":
        after = replace(entry, members=decision.members, placed_s=now_s)
        return Transition(after, now_s, f"continues with {_count(decision.members)}: {decision.reason}")
    after = entry.now("preempting", decision.reason, now_s)
    return Transition(after, now_s, f"is preempted: {decision.reason}")


def _event_text(entry: JobEntry) -> str:
    text = {
        "running": "runs",
        "queued": "has saved and waits again",
        "admitted": "is launched again",
        "stopping": "is being stopped",
    }.get(entry.phase, entry.phase)
    return f"{text}: {entry.reason}" if entry.reason and entry.phase != "queued" else text


def _count(members: int) -> str:
    return "1 member" if members == 1 else f"{members} members"
