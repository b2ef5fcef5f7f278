"""What a coordinator does while it leads.

    hear (message_handler.py) -> decide (membership.py) -> act: call, form (generation.py), hire ->
    run_journal.py

A leader begins with what the journal says. Members of the last generation that say hello again in time keep
their generation, so a change of leader disturbs nobody.
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
    back_off_s,
    comparable,
    cut_off,
    decide,
    find_losses,
    staff,
)
from windlass.elastic.membership_state import MembershipState, WorkerState
from windlass.elastic.message_handler import MessageHandler, Outbox
from windlass.elastic.run_journal import RunJournal
from windlass.plan.relayout import Relaid, Waits, relayout
from windlass.plan.stragglers import decide_pace
from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.protocol import elastic
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
"""Until a generation that could not be formed is tried again."""
COMPARE_EVERY_S = 1.0
LOOK_EVERY_S = 0.25
"""At the number of workers that is asked for."""


class Leader:
    """One term of leadership. Who holds the connections tells `reception` what comes, and calls `step`."""

    def __init__(self, folder: Path, epoch: int, node: str, speech: Outbox, now_s: float) -> None:
        self._folder, self._epoch, self._node, self._speech = folder, epoch, node, speech
        self._chronicle = RunJournal(folder, epoch, node)
        self._run = Run.model_validate_json((folder / RUN_FILE).read_bytes())
        self.roll = MembershipState(self._run.layout.world, self._run.job.elastic.spares, node, since_s=now_s)
        self.over: RunEnded | None = None
        self.reception = MessageHandler(self.roll, epoch, speech, self._note, self._tell)
        self._asked_id = 0
        self._looked_s = float("-inf")
        self._waiting = ""
        self._used: dict[int, int] = {}
        self._compared_s = now_s
        self._recall(now_s)

    def begin(self, address: str, reason: str) -> None:
        """Write down that this one leads."""
        self._note("coordinator", epoch=self._epoch, node=self._node, address=address, reason=reason)

    def step(self, now_s: float) -> bool:
        """Decide and act once; return False when this one should resign, because it seems to be alone."""
        self._look(now_s)
        losses = find_losses(self.roll, now_s)
        if cut_off(self.roll, losses, now_s):
            return False
        for loss in losses:
            self._lose(loss, now_s)
        for change in staff(self.roll, now_s):
            self._change(change, now_s)
        move = decide(self.roll, now_s, self._usable) or self._compare(now_s)
        if move is not None:
            self._act(move, now_s)
        self._chronicle.show(self.roll)
        return True

    def _recall(self, now_s: float) -> None:
        """Begin with the last generation in the journal, whose members are expected to say hello."""
        last: dict[str, Any] = {}
        for record in self._chronicle.read():
            event = record.get("event")
            if event == "generation":
                last = record
            elif event == "over":
                last = {**last, "members": []}
            elif event == "joined":
                self.reception.known.add(str(record["worker"]))
            elif event in ("lost", "left"):
                self.reception.gone.add(str(record["worker"]))
            elif event == "scaled":
                self._take_asked(record)
        roll = self.roll
        roll.generation, roll.layout = int(last.get("generation", 0)), dict(last.get("layout", {}))
        for member in last.get("members", []):
            name = str(member["worker"])
            roll.members = (*roll.members, name)
            if name in self.reception.gone:
                roll.broken = f"{name} is lost"
                continue
            worker = WorkerState(name, str(member["node"]), now_s, now_s, expected=True)
            worker.rank = int(member["rank"])
            roll.workers[name] = worker
        roll.turn("running" if roll.members else "idle", now_s)

    def _look(self, now_s: float) -> None:
        """Look at the number of workers that is asked for."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            asked = json.loads((self._folder / WORKERS).read_bytes())
        except (FileNotFoundError, ValueError):
            return
        if int(asked["id"]) > self._asked_id:
            self._take_asked(asked)
            self._note("scaled", **asked)

    def _take_asked(self, asked: dict[str, Any]) -> None:
        self._asked_id, self.roll.wanted = int(asked["id"]), int(asked["workers"])
        self.roll.nodes = int(asked.get("nodes", 1))

    def _lose(self, loss: LostWorker, now_s: float) -> None:
        roll, worker = self.roll, self.roll.workers[loss.worker]
        if worker.rank == 0 and worker.worker in roll.members and self._has_result():
            worker.outcome, worker.done_s = "finished", now_s  # it only could not say so any more
            return
        del roll.workers[loss.worker]
        self.reception.gone.add(loss.worker)
        self._note_loss(worker, loss)
        self._speech.to_agent(worker.node, KillWorker(self._epoch, worker.worker))
        if worker.worker in roll.members and roll.stage != "idle":
            roll.broken = roll.broken or f"{worker.worker} is lost: {loss.detail}"
        if loss.how == "exit" and now_s - worker.since_s < EARLY_S:
            roll.early += 1
            roll.start_after_s = now_s + back_off_s(roll.early)

    def _note_loss(self, worker: WorkerState, loss: LostWorker) -> None:
        self._note(
            "lost",
            worker=worker.worker,
            node=worker.node,
            rank=worker.rank if worker.worker in self.roll.members else None,
            generation=self.roll.generation,
            how=loss.how,
            detail=loss.detail,
            silent_s=round(loss.silent_s, 3),
        )

    def _has_result(self) -> bool:
        return load_manifest(StoreDir(self._folder / RESULT)) is not None

    def _act(self, move: Move, now_s: float) -> None:
        roll = self.roll
        if isinstance(move, AbandonGeneration | DrainGeneration):
            roll.reason = move.reason
        if isinstance(move, AbandonGeneration):
            self._to_crew(lambda: elastic.AbortGeneration(self._epoch, roll.generation, move.reason))
            roll.abandoned = True
            roll.turn("gathering", now_s)
            self._count_fruitless(move.reason, now_s)
        elif isinstance(move, DrainGeneration):
            self._to_crew(lambda: DrainAtStep(self._epoch, roll.generation, move.stop, move.departs))
            roll.called_stop = roll.called_stop or move.stop
            if not move.stop:
                roll.turn("gathering", now_s)
        elif isinstance(move, Drained):
            roll.kept = any(w.ready for w in roll.crew)
            roll.turn("idle", now_s)
        elif isinstance(move, Form):
            self._form(move.reason, now_s)
        else:
            self._end(move)

    def _compare(self, now_s: float) -> DrainGeneration | None:
        """Look for unequal workers now and then; a call when their shares shall change or one is too slow."""
        roll, rules = self.roll, self._run.job.elastic
        if not comparable(roll) or now_s - self._compared_s < COMPARE_EVERY_S:
            return None
        self._compared_s = now_s
        pace = decide_pace(
            {w.worker: list(w.paces) for w in roll.crew},
            roll.shares,
            self._run.batch_sequences,
            slow_factor=rules.slow_factor,
            balance=rules.balance and not rules.deterministic and not self._as_asked().job.sync.local,
            spares=len(roll.newcomers),
            totals={w.worker: list(w.totals) for w in roll.crew},
        )
        for name in pace.aside:
            self._set_aside(roll.workers[name], pace.reason)
        if pace.shares is None and not pace.aside:
            return None
        roll.next_shares = pace.shares if not pace.aside else None
        return DrainGeneration(pace.reason, departs=bool(pace.aside))

    def _set_aside(self, worker: WorkerState, reason: str) -> None:
        worker.slow = True
        self.roll.slow_nodes[worker.node] += 1
        self._note_loss(worker, LostWorker(worker.worker, "slow", reason, 0.0))

    def _count_fruitless(self, reason: str, now_s: float) -> None:
        """A generation that did no step makes the next one wait, a little longer each time."""
        roll = self.roll
        if roll.progressed:
            return
        roll.fruitless += 1
        roll.last_words = roll.last_words or reason
        if roll.fruitless > 2:
            roll.form_after_s = now_s + min(5.0, back_off_s(roll.fruitless - 2))

    def _form(self, reason: str, now_s: float) -> None:
        """Write the next generation down, and only then assign it."""
        formed = lay_out(self._as_asked(), self.roll, reason)
        if isinstance(formed, Waits):
            self._wait(formed.reason, now_s)
        elif self._note("generation", **formed.record(self._epoch)):
            self._enter(formed, now_s)
            for rank, name in enumerate(formed.names):
                self._speech.to_worker(name, formed.assignment(rank, self._epoch))
        else:
            self.roll.form_after_s = now_s + AGAIN_S

    def _as_asked(self) -> Run:
        """Return the run under what it was asked to change: replicas that walk apart have equal shares."""
        with contextlib.suppress(WindlassError, OSError):  # the trainer says what is wrong with a request
            asked = settings_file.newest(self._folder)
            sync = asked.sync if asked is not None else None
            if sync is not None:
                job = self._run.job.model_copy(update={"sync": sync})
                return self._run.model_copy(update={"job": job})
        return self._run

    def _enter(self, formed: Generation, now_s: float) -> None:
        roll = self.roll
        for worker in roll.workers.values():
            worker.go(None, formed.number)
        for rank, worker in enumerate(formed.members):
            worker.go(rank, formed.number)
        roll.generation, roll.members, roll.shares = formed.number, formed.names, formed.shares
        roll.layout = formed.layout.model_dump(mode="json")
        roll.broken, roll.abandoned, roll.kept, roll.called_stop = None, False, False, False
        roll.progressed, roll.stepped_s, roll.reason, self._waiting = False, None, "", ""
        roll.turn("running", now_s)

    def _wait(self, reason: str, now_s: float) -> None:
        self.roll.form_after_s = now_s + AGAIN_S
        if reason != self._waiting:
            self._waiting = reason
            self._note("waiting", reason=reason, workers=len(self.roll.ready))

    def _change(self, change: StartWorker | StopWorker, now_s: float) -> None:
        roll = self.roll
        if isinstance(change, StartWorker):
            name = f"{change.node}-{secrets.token_hex(3)}"
            roll.workers[name] = WorkerState(name, change.node, now_s, now_s)
            self._speech.to_agent(change.node, Start(self._epoch, name))
            return
        worker = roll.workers[change.worker]
        self._speech.to_worker(worker.worker, Shutdown(self._epoch, change.reason))
        self.reception.part_with(worker, change.reason)

    def _end(self, end: End) -> None:
        """Leave word in the store first: whoever misses the message finds it there."""
        self.over = RunEnded(self._epoch, end.outcome, end.error)
        self._note("over", outcome=end.outcome, generation=self.roll.generation)
        try:
            StoreDir(self._folder).write(
                OVER, json.dumps({"outcome": end.outcome, "error": end.error}).encode()
            )
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")
        for worker in self.roll.alive:
            self._speech.to_worker(worker.worker, Shutdown(self._epoch, f"the run is {end.outcome}"))
        for node in self.roll.agents:
            self._speech.to_agent(node, self.over)

    def _to_crew(self, message: Callable[[], ToWorker]) -> None:
        for worker in self.roll.crew:
            if worker.connected and not worker.over:
                self._speech.to_worker(worker.worker, message())

    def _usable(self, workers: int) -> int:
        if workers not in self._used:
            relaid = relayout(self._run, workers)
            self._used[workers] = relaid.used if isinstance(relaid, Relaid) else 0
        return self._used[workers]

    def _note(self, event: str, **content: Any) -> bool:
        """Journal an event and tell it; return whether it is written."""
        record = {"event": event, "time": round(time.time(), 3), **content}
        self._tell(record)
        return self._chronicle.note(record)

    def _tell(self, event: dict[str, Any]) -> None:
        for node in self.roll.agents:
            self._speech.to_agent(node, RunEvent(event, self._epoch))
