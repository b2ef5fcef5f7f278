"""What a coordinator does while it leads.

    messages (`message_handler`) -> decide (`membership`) -> act: drain, form (`generation`), start workers ->
    `run_journal`

A leader begins with the state in the journal. Members of the last generation that say hello again in time
keep their generation, so a change of leader does not interrupt training.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.elastic.generation import Generation, lay_out
from windlass.elastic.membership import (
    EARLY_S,
    AbandonGeneration,
    Drained,
    DrainGeneration,
    End,
    Form,
    LostWorker,
    Move,
    StartWorker,
    StopWorker,
    comparable,
    cut_off,
    decide,
    find_losses,
    scale,
)
from windlass.elastic.membership_state import MembershipState, WorkerState
from windlass.elastic.message_handler import MessageHandler, Outbox
from windlass.elastic.run_journal import RunJournal
from windlass.plan.relayout import Relaid, Waits, relayout
from windlass.plan.stragglers import decide_pace
from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.protocol import elastic
from windlass.spec.protocol.backoff import Backoff
from windlass.spec.protocol.elastic import (
    OVER,
    WORKERS,
    DrainAtStep,
    KillWorker,
    RunEnded,
    RunEvent,
    Shutdown,
    Start,
    ToWorker,
)
from windlass.spec.run import RESULT, RUN_FILE, Run
from windlass.store import settings_file
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir

AGAIN_S = 0.5
"""Delay before a generation that could not be formed is tried again."""
START_BACKOFF = Backoff(first_s=0.5, max_s=30.0)
"""Before the next worker starts, by the number of early exits in a row."""
FORM_BACKOFF, FREE_FRUITLESS = Backoff(first_s=0.5, max_s=5.0), 2
"""Before the next generation, by the number of generations without a step beyond FREE_FRUITLESS in a row."""
COMPARE_EVERY_S = 1.0
LOOK_EVERY_S = 0.25
"""Between two reads of the requested number of workers."""


class Leader:
    """One term of leadership. The coordinator passes messages to `handler`, and calls `step`."""

    def __init__(self, folder: Path, epoch: int, node: str, outbox: Outbox, now_s: float) -> None:
        self._folder, self._epoch, self._node, self._outbox = folder, epoch, node, outbox
        self._journal = RunJournal(folder, epoch, node)
        self._run = Run.model_validate_json((folder / RUN_FILE).read_bytes())
        self.state = MembershipState(
            self._run.layout.world, self._run.job.elastic.spares, node, since_s=now_s
        )
        self.over: RunEnded | None = None
        self.handler = MessageHandler(self.state, epoch, outbox, self._log_event, self._publish)
        self._scale_id = 0
        self._looked_s = float("-inf")
        self._waiting = ""
        self._used: dict[int, int] = {}
        self._compared_s = now_s
        self._restore(now_s)

    def begin(self, address: str, reason: str) -> None:
        """Journal that this coordinator leads."""
        self._log_event("coordinator", epoch=self._epoch, node=self._node, address=address, reason=reason)

    def step(self, now_s: float) -> bool:
        """Decide and act once; return False if this leader should resign, because it seems to be cut off."""
        self._read_scale_request(now_s)
        losses = find_losses(self.state, now_s)
        if cut_off(self.state, losses, now_s):
            return False
        for loss in losses:
            self._lose(loss, now_s)
        for change in scale(self.state, now_s):
            self._change(change, now_s)
        move = decide(self.state, now_s, self._usable) or self._check_pace(now_s)
        if move is not None:
            self._act(move, now_s)
        self._journal.write_members(self.state)
        return True

    def _restore(self, now_s: float) -> None:
        """Begin with the last generation in the journal; its members are expected to say hello."""
        last: dict[str, Any] = {}
        for record in self._journal.read():
            event = record.get("event")
            if event == "generation":
                last = record
            elif event == "over":
                last = {**last, "members": []}
            elif event == "joined":
                self.handler.known.add(str(record["worker"]))
            elif event in ("lost", "left"):
                self.handler.gone.add(str(record["worker"]))
            elif event == "scaled":
                self._apply_scale(record)
        state = self.state
        state.generation, state.layout = int(last.get("generation", 0)), dict(last.get("layout", {}))
        for member in last.get("members", []):
            name = str(member["worker"])
            state.members = (*state.members, name)
            if name in self.handler.gone:
                state.broken = f"{name} is lost"
                continue
            worker = WorkerState(name, str(member["node"]), now_s, now_s, expected=True)
            worker.rank = int(member["rank"])
            state.workers[name] = worker
        state.enter_stage("running" if state.members else "idle", now_s)

    def _read_scale_request(self, now_s: float) -> None:
        """Read the requested number of workers."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            request = json.loads((self._folder / WORKERS).read_bytes())
        except (FileNotFoundError, ValueError):
            return
        if int(request["id"]) > self._scale_id:
            self._apply_scale(request)
            self._log_event("scaled", **request)

    def _apply_scale(self, request: dict[str, Any]) -> None:
        self._scale_id, self.state.wanted = int(request["id"]), int(request["workers"])
        self.state.nodes = int(request.get("nodes", 1))

    def _lose(self, loss: LostWorker, now_s: float) -> None:
        state, worker = self.state, self.state.workers[loss.worker]
        if worker.rank == 0 and worker.worker in state.members and self._has_result():
            worker.outcome, worker.done_s = "finished", now_s  # it died after writing the result
            return
        del state.workers[loss.worker]
        self.handler.gone.add(loss.worker)
        self._log_loss(worker, loss)
        self._outbox.to_agent(worker.node, KillWorker(self._epoch, worker.worker))
        if worker.worker in state.members and state.stage != "idle":
            state.broken = state.broken or f"{worker.worker} is lost: {loss.detail}"
        if loss.how == "exit" and now_s - worker.since_s < EARLY_S:
            state.early += 1
            state.start_after_s = now_s + START_BACKOFF.wait_s(state.early)

    def _log_loss(self, worker: WorkerState, loss: LostWorker) -> None:
        self._log_event(
            "lost",
            worker=worker.worker,
            node=worker.node,
            rank=worker.rank if worker.worker in self.state.members else None,
            generation=self.state.generation,
            how=loss.how,
            detail=loss.detail,
            silent_s=round(loss.silent_s, 3),
        )

    def _has_result(self) -> bool:
        return load_manifest(StoreDir(self._folder / RESULT)) is not None

    def _act(self, move: Move, now_s: float) -> None:
        state = self.state
        if isinstance(move, AbandonGeneration | DrainGeneration):
            state.reason = move.reason
        if isinstance(move, AbandonGeneration):
            self._to_members(lambda: elastic.AbortGeneration(self._epoch, state.generation, move.reason))
            state.abandoned = True
            state.enter_stage("gathering", now_s)
            self._count_fruitless(move.reason, now_s)
        elif isinstance(move, DrainGeneration):
            self._to_members(lambda: DrainAtStep(self._epoch, state.generation, move.stop, move.departs))
            state.called_stop = state.called_stop or move.stop
            if not move.stop:
                state.enter_stage("gathering", now_s)
        elif isinstance(move, Drained):
            state.kept = any(w.ready for w in state.live_members)
            state.enter_stage("idle", now_s)
        elif isinstance(move, Form):
            self._form(move.reason, now_s)
        else:
            self._end(move)

    def _check_pace(self, now_s: float) -> DrainGeneration | None:
        """Compare the workers' paces; drain if their shares should change or a worker is too slow."""
        state, rules = self.state, self._run.job.elastic
        if not comparable(state) or now_s - self._compared_s < COMPARE_EVERY_S:
            return None
        self._compared_s = now_s
        pace = decide_pace(
            {w.worker: list(w.paces) for w in state.live_members},
            state.shares,
            self._run.batch_sequences,
            slow_factor=rules.slow_factor,
            balance=rules.balance and not rules.deterministic and not self._with_settings().job.sync.local,
            spares=len(state.newcomers),
            totals={w.worker: list(w.totals) for w in state.live_members},
        )
        for name in pace.aside:
            self._set_aside(state.workers[name], pace.reason)
        if pace.shares is None and not pace.aside:
            return None
        state.next_shares = pace.shares if not pace.aside else None
        return DrainGeneration(pace.reason, departs=bool(pace.aside))

    def _set_aside(self, worker: WorkerState, reason: str) -> None:
        worker.slow = True
        self.state.slow_nodes[worker.node] += 1
        self._log_loss(worker, LostWorker(worker.worker, "slow", reason, 0.0))

    def _count_fruitless(self, reason: str, now_s: float) -> None:
        """Delay the next generation after one that completed no step, longer each time."""
        state = self.state
        if state.progressed:
            return
        state.fruitless += 1
        state.last_words = state.last_words or reason
        if state.fruitless > FREE_FRUITLESS:
            state.form_after_s = now_s + FORM_BACKOFF.wait_s(state.fruitless - FREE_FRUITLESS)

    def _form(self, reason: str, now_s: float) -> None:
        """Journal the next generation, and only then assign it."""
        formed = lay_out(self._with_settings(), self.state, reason)
        if isinstance(formed, Waits):
            self._wait(formed.reason, now_s)
        elif self._log_event("generation", **formed.record(self._epoch)):
            self._enter(formed, now_s)
            for rank, name in enumerate(formed.names):
                self._outbox.to_worker(name, formed.assignment(rank, self._epoch))
        else:
            self.state.form_after_s = now_s + AGAIN_S

    def _with_settings(self) -> Run:
        """Return the run with its current settings: replicas that sync rarely must have equal shares."""
        with contextlib.suppress(WindlassError, OSError):  # the trainer reports what is wrong with a request
            request = settings_file.newest(self._folder)
            sync = request.sync if request is not None else None
            if sync is not None:
                job = self._run.job.model_copy(update={"sync": sync})
                return self._run.model_copy(update={"job": job})
        return self._run

    def _enter(self, formed: Generation, now_s: float) -> None:
        state = self.state
        for worker in state.workers.values():
            worker.assign(None, formed.number)
        for rank, worker in enumerate(formed.members):
            worker.assign(rank, formed.number)
        state.generation, state.members, state.shares = formed.number, formed.names, formed.shares
        state.layout = formed.layout.model_dump(mode="json")
        state.broken, state.abandoned, state.kept, state.called_stop = None, False, False, False
        state.progressed, state.stepped_s, state.reason, self._waiting = False, None, "", ""
        state.enter_stage("running", now_s)

    def _wait(self, reason: str, now_s: float) -> None:
        self.state.form_after_s = now_s + AGAIN_S
        if reason != self._waiting:
            self._waiting = reason
            self._log_event("waiting", reason=reason, workers=len(self.state.ready))

    def _change(self, change: StartWorker | StopWorker, now_s: float) -> None:
        state = self.state
        if isinstance(change, StartWorker):
            name = f"{change.node}-{secrets.token_hex(3)}"
            state.workers[name] = WorkerState(name, change.node, now_s, now_s)
            self._outbox.to_agent(change.node, Start(self._epoch, name))
            return
        worker = state.workers[change.worker]
        self._outbox.to_worker(worker.worker, Shutdown(self._epoch, change.reason))
        self.handler.dismiss(worker, change.reason)

    def _end(self, end: End) -> None:
        """Write the outcome to the store first: an agent that misses the message reads it there."""
        self.over = RunEnded(self._epoch, end.outcome, end.error)
        self._log_event("over", outcome=end.outcome, generation=self.state.generation)
        try:
            StoreDir(self._folder).write(
                OVER, json.dumps({"outcome": end.outcome, "error": end.error}).encode()
            )
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")
        for worker in self.state.alive:
            self._outbox.to_worker(worker.worker, Shutdown(self._epoch, f"the run is {end.outcome}"))
        for node in self.state.agents:
            self._outbox.to_agent(node, self.over)

    def _to_members(self, message: Callable[[], ToWorker]) -> None:
        for worker in self.state.live_members:
            if worker.connected and not worker.over:
                self._outbox.to_worker(worker.worker, message())

    def _usable(self, workers: int) -> int:
        if workers not in self._used:
            relaid = relayout(self._run, workers)
            self._used[workers] = relaid.used if isinstance(relaid, Relaid) else 0
        return self._used[workers]

    def _log_event(self, event: str, **content: Any) -> bool:
        """Publish an event and journal it; return whether it is written."""
        record = {"event": event, "time": round(time.time(), 3), **content}
        self._publish(record)
        return self._journal.append(record)

    def _publish(self, event: dict[str, Any]) -> None:
        for node in self.state.agents:
            self._outbox.to_agent(node, RunEvent(event, self._epoch))
