"""What a coordinator does while it leads: hears workers and agents, decides (membership.py), acts, journals.

A leader begins with what the journal says. Members of the last generation that say hello again in time keep
their generation, so a change of leader disturbs nobody.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from windlass.cluster.on_local import cause_of, error_of
from windlass.operate.chronicle import Chronicle
from windlass.operate.membership import (
    EARLY_S,
    Abandon,
    Call,
    End,
    Fire,
    Form,
    Hire,
    Loss,
    Move,
    Rest,
    back_off_s,
    comparable,
    cut_off,
    decide,
    find_losses,
    shares_for,
    staff,
)
from windlass.operate.roll import Agent, Roll, Worker
from windlass.plan.pace import decide_pace
from windlass.plan.relayout import Relaid, relayout
from windlass.spec import elastic
from windlass.spec.elastic import (
    OVER,
    WORKERS,
    Asked,
    Assign,
    Beat,
    Border,
    Dismiss,
    Done,
    Exited,
    Hello,
    Kill,
    Lobby,
    Over,
    Start,
    Started,
    ToAgent,
    ToCoordinator,
    Told,
    ToWorker,
)
from windlass.spec.errors import AskedWrongly
from windlass.spec.run import RUN_FILE, Run
from windlass.store.place import Place

COMPARE_EVERY_S = 1.0
LOOK_EVERY_S = 0.25
"""At the number of workers that is asked for."""


class Speech(Protocol):
    """How a leader speaks; the door's sockets, or a test's list."""

    def to_worker(self, worker: str, message: ToWorker) -> None: ...

    def to_agent(self, node: str, message: ToAgent) -> None: ...


class Leader:
    """One term of leadership. `hear` and `step` are called by whoever holds the connections."""

    def __init__(self, folder: Path, epoch: int, node: str, speech: Speech, now_s: float) -> None:
        self._folder, self._epoch, self._node, self._speech = folder, epoch, node, speech
        self._chronicle = Chronicle(folder, epoch, node)
        self._run = Run.model_validate_json((folder / RUN_FILE).read_bytes())
        self.roll = Roll(self._run.layout.world, self._run.job.elastic.spares, node, since_s=now_s)
        self.over: Over | None = None
        self._gone: set[str] = set()
        """Workers that were lost: whoever of them comes back is sent home."""
        self._known: set[str] = set()
        """Workers that joined, under whichever coordinator."""
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
        if cut_off(self.roll, losses):
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

    def hear(self, sender: str, message: ToCoordinator, now_s: float) -> None:
        """Take a message of the worker called `sender`."""
        worker = self.roll.workers.get(sender)
        if worker is None:
            return
        if isinstance(message, Beat):
            self._hear_beat(worker, message, now_s)
        elif isinstance(message, Lobby):
            worker.come(message, now_s)
            self.roll.get_on(now_s)
        elif isinstance(message, Told):
            self._tell(message.event)
        elif isinstance(message, Done):
            self._hear_done(worker, message, now_s)

    def hear_agent(self, node: str, message: ToCoordinator, now_s: float) -> None:
        """Take a message of the agent of a node."""
        if isinstance(message, Started) and message.worker in self.roll.workers:
            self.roll.workers[message.worker].pid = message.pid
        elif isinstance(message, Exited):
            self._hear_exit(message, now_s)
        elif isinstance(message, Asked):
            if self.roll.stop:
                self._end(End("stopped"))
            self.roll.stop = True

    def greet(self, hello: Hello, now_s: float) -> bool:
        """Take in whoever says hello; return False to send it away."""
        if hello.role == "agent":
            self._greet_agent(hello, now_s)
            return True
        if hello.worker in self._gone:
            return False
        worker = self.roll.workers.get(hello.worker)
        if hello.worker not in self._known:
            self._known.add(hello.worker)
            self._note("joined", worker=hello.worker, node=hello.node)
        if worker is None:
            worker = Worker(hello.worker, hello.node, now_s, now_s)
            self.roll.workers[hello.worker] = worker
        worker.connected, worker.cut, worker.expected, worker.heard_s = True, False, False, now_s
        worker.pid, worker.store, worker.node = hello.pid, hello.store, hello.node
        worker.generation, worker.step = hello.generation, hello.step
        return True

    def lose_link(self, sender: str) -> None:
        """Take note that the connection of a worker was closed."""
        worker = self.roll.workers.get(sender)
        if worker is not None and not worker.over:
            worker.cut = True

    def lose_agent(self, node: str) -> None:
        """Its workers speak for themselves; only nothing can be started there."""
        self.roll.agents.pop(node, None)

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
                self._known.add(str(record["worker"]))
            elif event == "lost":
                self._gone.add(str(record["worker"]))
            elif event == "scaled":
                self._take_asked(record)
        roll = self.roll
        roll.generation, roll.layout = int(last.get("generation", 0)), dict(last.get("layout", {}))
        for member in last.get("members", []):
            name = str(member["worker"])
            roll.workers[name] = Worker(name, str(member["node"]), now_s, now_s, expected=True)
            roll.workers[name].rank = int(member["rank"])
        roll.members = tuple(str(m["worker"]) for m in last.get("members", []))
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

    def _hear_beat(self, worker: Worker, beat: Beat, now_s: float) -> None:
        moved = worker.beat(beat, now_s)
        unheard = beat.phase == "lobby" and worker.ready_s is None
        if unheard and (worker.rank is None or beat.generation == self.roll.generation):
            worker.come(Lobby(beat.generation, beat.step, "it waits in the lobby"), now_s)
        if moved and worker.rank is not None:
            self.roll.get_on(now_s)

    def _hear_done(self, worker: Worker, done: Done, now_s: float) -> None:
        worker.heard_s = worker.done_s = now_s
        if done.outcome == "left":
            self._part_with(worker, "it was asked to leave")
            return
        if done.outcome != "failed":
            worker.outcome = done.outcome
            return
        error = error_of(done.error or {})
        if isinstance(error, AskedWrongly):
            worker.outcome, worker.error = "failed", done.error
        else:
            worker.exit = f"{error.message}"

    def _hear_exit(self, exited: Exited, now_s: float) -> None:
        worker = self.roll.workers.get(exited.worker)
        if worker is None:
            return
        if worker.dismissed:
            del self.roll.workers[worker.worker]
        elif worker.outcome is None:
            cause = cause_of(exited.code) if exited.code is not None else "its process is gone"
            worker.exit, worker.code = worker.exit or cause, exited.code
            self.roll.last_words = f"{worker.worker} {cause}; {exited.tail}"

    def _greet_agent(self, hello: Hello, now_s: float) -> None:
        roll = self.roll
        roll.agents[hello.node] = Agent(hello.node, hello.host, hello.most)
        absent = [w for w in roll.workers.values() if w.node == hello.node and w.worker not in hello.workers]
        for worker in absent:
            worker.cut = worker.cut or not worker.connected  # what was said of it was lost with a connection
        for name, pid in hello.workers.items():
            if name in self._gone:
                self._speech.to_agent(hello.node, Kill(self._epoch, name))
            elif name not in roll.workers:
                roll.workers[name] = Worker(name, hello.node, now_s, now_s, pid=pid)

    def _lose(self, loss: Loss, now_s: float) -> None:
        roll, worker = self.roll, self.roll.workers.pop(loss.worker)
        self._gone.add(loss.worker)
        self._note(
            "lost",
            worker=worker.worker,
            node=worker.node,
            rank=worker.rank if worker.worker in roll.members else None,
            generation=roll.generation,
            how=loss.how,
            detail=loss.detail,
            silent_s=round(loss.silent_s, 3),
        )
        self._speech.to_agent(worker.node, Kill(self._epoch, worker.worker))
        if worker.worker in roll.members and roll.stage != "idle":
            roll.broken = roll.broken or f"{worker.worker} is lost: {loss.detail}"
        if loss.how == "exit" and now_s - worker.since_s < EARLY_S:
            roll.early += 1
            roll.start_after_s = now_s + back_off_s(roll.early)

    def _act(self, move: Move, now_s: float) -> None:
        roll = self.roll
        if isinstance(move, Abandon | Call):
            roll.reason = move.reason
        if isinstance(move, Abandon):
            self._to_crew(lambda: elastic.Abandon(self._epoch, roll.generation, move.reason))
            roll.abandoned = True
            roll.turn("gathering", now_s)
            self._count_fruitless(move.reason, now_s)
        elif isinstance(move, Call):
            self._to_crew(lambda: Border(self._epoch, roll.generation, move.stop))
            roll.called_stop = roll.called_stop or move.stop
            if not move.stop:
                roll.turn("gathering", now_s)
        elif isinstance(move, Rest):
            roll.kept = any(w.ready for w in roll.crew)
            roll.turn("idle", now_s)
        elif isinstance(move, Form):
            self._form(move.reason, now_s)
        else:
            self._end(move)

    def _compare(self, now_s: float) -> Call | None:
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
            balance=rules.balance and not rules.deterministic,
        )
        for name in pace.aside:
            self._set_aside(roll.workers[name], pace.reason)
        if pace.shares is None and not pace.aside:
            return None
        roll.next_shares = pace.shares if not pace.aside else None
        return Call(pace.reason)

    def _set_aside(self, worker: Worker, reason: str) -> None:
        worker.slow = True
        self.roll.slow_nodes[worker.node] += 1
        self._note(
            "lost",
            worker=worker.worker,
            node=worker.node,
            rank=worker.rank,
            generation=self.roll.generation,
            how="slow",
            detail=reason,
            silent_s=0.0,
        )

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
        """Lay the run out on the workers that wait, write the generation down, and only then assign it."""
        roll = self.roll
        ready = roll.ready[: roll.wanted]
        relaid = relayout(self._run, len(ready))
        if not isinstance(relaid, Relaid):
            self._wait(relaid.reason, len(ready), now_s)
            return
        chosen = ready[: relaid.used]
        shares = shares_for(roll, relaid.layout, [w.worker for w in chosen])
        layout = relaid.layout.model_copy(update={"shares": shares}).model_dump(mode="json")
        why = f"{reason}; {relaid.reason}"
        record = {
            "generation": roll.generation + 1,
            "epoch": self._epoch,
            "members": [{"worker": w.worker, "node": w.node, "rank": r} for r, w in enumerate(chosen)],
            "spares": [w.worker for w in roll.ready if w not in chosen],
            "layout": layout,
            "reason": why,
        }
        if not self._note("generation", **record):
            roll.form_after_s = now_s + 0.5
            return
        for worker in roll.workers.values():
            worker.go(None, roll.generation + 1)
        roll.generation, roll.members, roll.layout = (
            roll.generation + 1,
            tuple(w.worker for w in chosen),
            layout,
        )
        for rank, worker in enumerate(chosen):
            worker.go(rank, roll.generation)
            self._speech.to_worker(
                worker.worker,
                Assign(
                    epoch=self._epoch,
                    generation=roll.generation,
                    rank=rank,
                    world=len(chosen),
                    layout=layout,
                    rendezvous=chosen[0].store,
                    members=list(roll.members),
                    reason=why,
                    micro_batch_sequences=relaid.micro_batch_sequences,
                ),
            )
        roll.shares = (
            dict(zip(roll.members, shares, strict=True)) if shares and len(shares) == len(chosen) else None
        )
        roll.broken, roll.abandoned, roll.kept, roll.called_stop = None, False, False, False
        roll.progressed, roll.stepped_s, roll.reason, self._waiting = False, None, "", ""
        roll.turn("running", now_s)

    def _wait(self, reason: str, workers: int, now_s: float) -> None:
        self.roll.form_after_s = now_s + 0.5
        if reason != self._waiting:
            self._waiting = reason
            self._note("waiting", reason=reason, workers=workers)

    def _change(self, change: Hire | Fire, now_s: float) -> None:
        roll = self.roll
        if isinstance(change, Hire):
            name = f"{change.node}-{secrets.token_hex(3)}"
            roll.workers[name] = Worker(name, change.node, now_s, now_s)
            self._speech.to_agent(change.node, Start(self._epoch, name))
            return
        worker = roll.workers[change.worker]
        self._speech.to_worker(worker.worker, Dismiss(self._epoch, change.reason))
        self._part_with(worker, change.reason)

    def _part_with(self, worker: Worker, reason: str) -> None:
        """Members of its generation that it leaves behind come to the lobby with it, or fail without it."""
        if not worker.dismissed:
            worker.dismissed = True
            self._note("left", worker=worker.worker, node=worker.node, reason=reason)

    def _end(self, end: End) -> None:
        """Leave word in the store first: whoever misses the message finds it there."""
        self.over = Over(self._epoch, end.outcome, end.error)
        self._note("over", outcome=end.outcome, generation=self.roll.generation)
        Place(self._folder).write(OVER, json.dumps({"outcome": end.outcome, "error": end.error}).encode())
        for worker in self.roll.alive:
            self._speech.to_worker(worker.worker, Dismiss(self._epoch, f"the run is {end.outcome}"))
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
            self._speech.to_agent(node, Told(event, self._epoch))
