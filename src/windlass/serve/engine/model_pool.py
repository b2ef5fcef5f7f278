"""Several models in one process; as many are in memory as fit.

A model is loaded at its first request, or ahead of it (`warm`), one model at a time and in a thread of its
own. The other models keep serving, and requests for the loading model wait. When memory runs low, the least
recently used model is unloaded: it accepts no more requests, finishes those that it has, and is dropped. A
model that fails to load fails its own requests and no others.

A pool implements EngineProtocol, as one engine does: add, step, forget.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from windlass.serve.engine.engine_api import EngineProtocol, Reply
from windlass.serve.engine.model_slot import Loaded, ModelSlot, Request, release_memory
from windlass.serve.engine.sequence import Owner
from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.protocol.wire import Cancel, EngineRequest, Failed, ModelInfo, Tokens
from windlass.spec.units import format_bytes

LOOK_S = 0.01
"""How long a step waits for a loading model when there is nothing to compute."""
RETRY_S = 30.0
"""After a failed load, requests for the model fail at once for this long; then loading is retried."""


class ModelPool:
    """Many models behind the interface of one engine. Not thread-safe."""

    def __init__(
        self,
        slots: Sequence[ModelSlot],
        budget: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for slot in slots:
            if budget is not None and slot.bytes > budget:
                raise BadInput(
                    f"'{slot.offered.model}' needs {format_bytes(slot.bytes)}, "
                    f"more than the {format_bytes(budget)} of --memory",
                    hint="give more memory, or a smaller precision",
                )
        self._slots = {slot.offered.model: slot for slot in slots}
        self._first = slots[0]
        self._budget = budget
        self._clock = clock
        self._loaded: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self._replies: list[Reply] = []
        self._requests = self._past_steps = self._past_tokens = 0

    @property
    def offered(self) -> list[ModelInfo]:
        return [slot.offered for slot in self._slots.values()]

    @property
    def in_memory(self) -> list[str]:
        """The models that are loaded and accept requests."""
        return [name for name, slot in self._slots.items() if slot.takes]

    @property
    def steps(self) -> int:
        return self._past_steps + sum(engine.steps for engine in self._engines())

    @property
    def tokens(self) -> int:
        return self._past_tokens + sum(engine.tokens for engine in self._engines())

    @property
    def running_count(self) -> int:
        return sum(engine.running_count for engine in self._engines())

    @property
    def waiting_count(self) -> int:
        queued = sum(len(slot.waiting) for slot in self._slots.values())
        return queued + sum(engine.waiting_count for engine in self._engines())

    @property
    def blocks_used(self) -> int:
        return sum(engine.blocks_used for engine in self._engines())

    @property
    def blocks_idle(self) -> int:
        return sum(engine.blocks_idle for engine in self._engines())

    @property
    def blocks_in_all(self) -> int:
        return sum(engine.blocks_in_all for engine in self._engines())

    @property
    def is_idle(self) -> bool:
        busy = any(not engine.is_idle for engine in self._engines())
        return not (
            busy or self._replies or any(slot.waiting or slot.wanted for slot in self._slots.values())
        )

    def warm(self) -> None:
        """Load models before their first request, in order, as far as memory allows."""
        held = 0
        for slot in self._slots.values():
            if self._budget is None or held + slot.bytes <= self._budget:
                slot.wanted = True
                held += slot.bytes

    def add(self, owner: Owner, message: EngineRequest) -> None:
        """Accept a message; its replies come out of the following steps."""
        if isinstance(message, Cancel):
            self._cancel(owner, message)
            return
        slot = self._slots.get(message.model) if message.model else self._first
        if slot is None:
            known = did_you_mean(message.model, list(self._slots))
            self._refuse((owner, message), "unknown_model", f"no model '{message.model}'; {known}")
            return
        self._requests += 1
        slot.last_request = self._requests
        if slot.failure and self._clock() - slot.failed_at < RETRY_S:
            self._refuse((owner, message), "model_failed", slot.failure)
        elif slot.takes and slot.engine is not None:
            slot.engine.add(owner, message)
        else:
            slot.waiting.append((owner, message))

    def forget(self, owner: Owner) -> None:
        """Drop all requests of an owner that has disconnected."""
        self._replies = [reply for reply in self._replies if reply[0] != owner]
        for slot in self._slots.values():
            slot.waiting = [request for request in slot.waiting if request[0] != owner]
        for engine in self._engines():
            engine.forget(owner)

    def rest(self) -> None:
        """Called when idle: engines release the memory of past requests; the models stay."""
        for engine in self._engines():
            engine.rest()

    def step(self) -> list[Reply]:
        """Step every model that has work; load and unload models on the way."""
        self._take_loaded(wait=not any(not engine.is_idle for engine in self._engines()))
        self._load_next()
        replies, self._replies = self._replies, []
        for engine in self._engines():
            if not engine.is_idle:
                replies += engine.step()
        return replies

    def _take_loaded(self, *, wait: bool) -> None:
        """Put loaded models into service; with `wait`, wait a moment for one that is loading."""
        waits = wait and any(slot.loading for slot in self._slots.values())
        try:
            while True:
                slot, result = self._loaded.get(timeout=LOOK_S) if waits else self._loaded.get_nowait()
                waits = slot.loading = slot.wanted = False
                if isinstance(result, str):
                    self._fail(slot, result)
                    continue
                slot.engine, slot.failure = result, ""
                self._hand_over(slot)
        except queue.Empty:
            return

    def _load_next(self) -> None:
        """Start to load the next requested model if memory allows; else unload the least recently used."""
        for slot in self._slots.values():
            if slot.unloading and slot.engine is not None and slot.engine.is_idle:
                self._unload(slot)
        due = [slot for slot in self._slots.values() if slot.is_due]
        if not due or any(slot.loading for slot in self._slots.values()):
            return
        slot = min(due, key=lambda slot: (not slot.waiting, slot.last_request))
        if self._budget is None or self._held_bytes + slot.bytes <= self._budget:
            slot.begin(self._loaded)
        elif slot.waiting:
            self._free_memory(slot.bytes)
        else:
            slot.wanted = False

    def _free_memory(self, wanted: int) -> None:
        """Mark models for unloading, least recently used first, until `wanted` bytes will be free."""
        assert self._budget is not None
        staying = sorted(
            (slot for slot in self._slots.values() if slot.takes), key=lambda slot: slot.last_request
        )
        held = self._held_bytes - sum(slot.bytes for slot in self._slots.values() if slot.unloading)
        for slot in staying:
            if held + wanted <= self._budget:
                return
            slot.unloading = True
            held -= slot.bytes

    @property
    def _held_bytes(self) -> int:
        return sum(slot.held_bytes for slot in self._slots.values())

    def _unload(self, slot: ModelSlot) -> None:
        assert slot.engine is not None
        self._past_steps += slot.engine.steps
        self._past_tokens += slot.engine.tokens
        slot.engine, slot.unloading = None, False
        release_memory()

    def _hand_over(self, slot: ModelSlot) -> None:
        assert slot.engine is not None
        waiting, slot.waiting = slot.waiting, []
        for owner, message in waiting:
            slot.engine.add(owner, message)

    def _fail(self, slot: ModelSlot, why: str) -> None:
        slot.failure, slot.failed_at = why, self._clock()
        waiting, slot.waiting = slot.waiting, []
        for request in waiting:
            self._refuse(request, "model_failed", why)

    def _refuse(self, request: Request, code: str, why: str) -> None:
        owner, message = request
        self._replies.append((owner, Failed(message.id, code, why)))

    def _cancel(self, owner: Owner, message: Cancel) -> None:
        for slot in self._slots.values():
            kept = [r for r in slot.waiting if r[0] != owner or r[1].id != message.id]
            if len(kept) < len(slot.waiting):
                slot.waiting = kept
                self._replies.append((owner, Tokens(message.id, finish="cancelled")))
                return
        for engine in self._engines():
            engine.add(owner, message)

    def _engines(self) -> list[EngineProtocol]:
        return [slot.engine for slot in self._slots.values() if slot.engine is not None]
