"""Several models in one process, of which as many are in memory as fit.

A model is loaded when it is first asked for, or ahead of that (`warm`), one at a time and in a thread of
its own, while the others go on being served; requests for it wait meanwhile. Where memory is short, the
model that was asked for longest ago goes: it takes no more requests, finishes those that it has, and is
dropped. A model that cannot be loaded fails its own requests and no others.

A shelf is used as one engine is: add, step, forget.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from windlass.serve.engine.engine_api import EngineProtocol, Reply
from windlass.serve.engine.model_slot import Loaded, ModelSlot, Request, give_back
from windlass.serve.engine.sequence import Owner
from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.protocol.wire import Cancel, EngineRequest, Failed, ModelInfo, Tokens
from windlass.spec.units import format_bytes

LOOK_S = 0.01
"""How long a step waits for a model when there is nothing to compute."""
RETRY_S = 30.0
"""So long a model that failed is not tried again; until then its requests fail at once."""


class ModelPool:
    """Many models behind the face of one engine. Not for use by several threads."""

    def __init__(
        self,
        volumes: Sequence[ModelSlot],
        budget: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for volume in volumes:
            if budget is not None and volume.bytes > budget:
                raise BadInput(
                    f"'{volume.offered.model}' needs {format_bytes(volume.bytes)}, "
                    f"more than the {format_bytes(budget)} of --memory",
                    hint="give more memory, or a smaller precision",
                )
        self._volumes = {volume.offered.model: volume for volume in volumes}
        self._first = volumes[0]
        self._budget = budget
        self._clock = clock
        self._loaded: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self._replies: list[Reply] = []
        self._asked = self._past_steps = self._past_tokens = 0

    @property
    def offered(self) -> list[ModelInfo]:
        return [volume.offered for volume in self._volumes.values()]

    @property
    def in_memory(self) -> list[str]:
        """The models that could answer at once."""
        return [name for name, volume in self._volumes.items() if volume.takes]

    @property
    def steps(self) -> int:
        return self._past_steps + sum(station.steps for station in self._stations())

    @property
    def tokens(self) -> int:
        return self._past_tokens + sum(station.tokens for station in self._stations())

    @property
    def running_count(self) -> int:
        return sum(station.running_count for station in self._stations())

    @property
    def waiting_count(self) -> int:
        queued = sum(len(volume.waiting) for volume in self._volumes.values())
        return queued + sum(station.waiting_count for station in self._stations())

    @property
    def blocks_used(self) -> int:
        return sum(station.blocks_used for station in self._stations())

    @property
    def blocks_idle(self) -> int:
        return sum(station.blocks_idle for station in self._stations())

    @property
    def blocks_in_all(self) -> int:
        return sum(station.blocks_in_all for station in self._stations())

    @property
    def is_idle(self) -> bool:
        busy = any(not station.is_idle for station in self._stations())
        return not (busy or self._replies or any(v.waiting or v.wanted for v in self._volumes.values()))

    def warm(self) -> None:
        """Load models before they are asked for, in their order, as far as there is room."""
        held = 0
        for volume in self._volumes.values():
            if self._budget is None or held + volume.bytes <= self._budget:
                volume.wanted = True
                held += volume.bytes

    def add(self, owner: Owner, message: EngineRequest) -> None:
        """Take a message; what it leads to comes out of the next steps."""
        if isinstance(message, Cancel):
            self._cancel(owner, message)
            return
        volume = self._volumes.get(message.model) if message.model else self._first
        if volume is None:
            known = did_you_mean(message.model, list(self._volumes))
            self._refuse((owner, message), "unknown_model", f"no model '{message.model}'; {known}")
            return
        self._asked += 1
        volume.asked = self._asked
        if volume.failure and self._clock() - volume.failed_at < RETRY_S:
            self._refuse((owner, message), "model_failed", volume.failure)
        elif volume.takes and volume.station is not None:
            volume.station.add(owner, message)
        else:
            volume.waiting.append((owner, message))

    def forget(self, owner: Owner) -> None:
        """Drop all requests of an owner that is gone."""
        self._replies = [reply for reply in self._replies if reply[0] != owner]
        for volume in self._volumes.values():
            volume.waiting = [request for request in volume.waiting if request[0] != owner]
        for station in self._stations():
            station.forget(owner)

    def rest(self) -> None:
        """Give back the memory of past requests; the models stay."""
        for station in self._stations():
            station.rest()

    def step(self) -> list[Reply]:
        """Let every model that has work do one step; bring in and put away models on the way."""
        self._take_loaded(wait=not any(not station.is_idle for station in self._stations()))
        self._make_room()
        replies, self._replies = self._replies, []
        for station in self._stations():
            if not station.is_idle:
                replies += station.step()
        return replies

    def _take_loaded(self, *, wait: bool) -> None:
        """Put models into service that have been loaded; with nothing else to do, wait a little for one."""
        waits = wait and any(volume.loading for volume in self._volumes.values())
        try:
            while True:
                volume, result = self._loaded.get(timeout=LOOK_S) if waits else self._loaded.get_nowait()
                waits = volume.loading = volume.wanted = False
                if isinstance(result, str):
                    self._fail(volume, result)
                    continue
                volume.station, volume.failure = result, ""
                self._hand_over(volume)
        except queue.Empty:
            return

    def _make_room(self) -> None:
        """Begin to load what is waited for, as far as there is room; ask the longest unused to leave."""
        for volume in self._volumes.values():
            if volume.leaving and volume.station is not None and volume.station.is_idle:
                self._put_away(volume)
        due = [volume for volume in self._volumes.values() if volume.is_due]
        if not due or any(volume.loading for volume in self._volumes.values()):
            return
        volume = min(due, key=lambda v: (not v.waiting, v.asked))
        if self._budget is None or self._held_bytes + volume.bytes <= self._budget:
            volume.begin(self._loaded)
        elif volume.waiting:
            self._clear(volume.bytes)
        else:
            volume.wanted = False

    def _clear(self, wanted: int) -> None:
        """Have models leave, the longest unused first, until what stays allows for `wanted` bytes."""
        assert self._budget is not None
        staying = sorted((v for v in self._volumes.values() if v.takes), key=lambda v: v.asked)
        held = self._held_bytes - sum(v.bytes for v in self._volumes.values() if v.leaving)
        for volume in staying:
            if held + wanted <= self._budget:
                return
            volume.leaving = True
            held -= volume.bytes

    @property
    def _held_bytes(self) -> int:
        return sum(volume.held_bytes for volume in self._volumes.values())

    def _put_away(self, volume: ModelSlot) -> None:
        assert volume.station is not None
        self._past_steps += volume.station.steps
        self._past_tokens += volume.station.tokens
        volume.station, volume.leaving = None, False
        give_back()

    def _hand_over(self, volume: ModelSlot) -> None:
        assert volume.station is not None
        waiting, volume.waiting = volume.waiting, []
        for owner, message in waiting:
            volume.station.add(owner, message)

    def _fail(self, volume: ModelSlot, why: str) -> None:
        volume.failure, volume.failed_at = why, self._clock()
        waiting, volume.waiting = volume.waiting, []
        for request in waiting:
            self._refuse(request, "model_failed", why)

    def _refuse(self, request: Request, code: str, why: str) -> None:
        owner, message = request
        self._replies.append((owner, Failed(message.id, code, why)))

    def _cancel(self, owner: Owner, message: Cancel) -> None:
        for volume in self._volumes.values():
            kept = [r for r in volume.waiting if r[0] != owner or r[1].id != message.id]
            if len(kept) < len(volume.waiting):
                volume.waiting = kept
                self._replies.append((owner, Tokens(message.id, finish="cancelled")))
                return
        for station in self._stations():
            station.add(owner, message)

    def _stations(self) -> list[EngineProtocol]:
        return [volume.station for volume in self._volumes.values() if volume.station is not None]
