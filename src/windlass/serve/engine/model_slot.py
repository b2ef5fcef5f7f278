"""One model of a pool: its state, how it is loaded, and how its memory is released."""

from __future__ import annotations

import ctypes
import gc
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from windlass.serve.engine.engine_api import EngineProtocol
from windlass.serve.engine.sequence import Owner
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.wire import Embed, Generate, ModelInfo

Request = tuple[Owner, Generate | Embed]


@dataclass(eq=False)
class ModelSlot:
    """One model, in memory or not."""

    offered: ModelInfo
    bytes: int
    """Memory that it takes, counted from the start of loading."""
    load: Callable[[], EngineProtocol]
    engine: EngineProtocol | None = None
    loading: bool = False
    unloading: bool = False
    wanted: bool = False
    """To be loaded although no request for it has come yet."""
    waiting: list[Request] = field(default_factory=list)
    last_request: int = 0
    """Number of its last request among all requests of the pool; orders models by use."""
    failure: str = ""
    failed_at: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it should be loaded, and is not."""
        return bool(self.waiting or self.wanted) and self.engine is None and not self.loading

    @property
    def takes(self) -> bool:
        """Whether it accepts requests now."""
        return self.engine is not None and not self.unloading

    @property
    def held_bytes(self) -> int:
        return self.bytes if self.engine is not None or self.loading else 0

    def begin(self, done: queue.SimpleQueue[Loaded]) -> None:
        """Load it in a thread, which puts the engine, or the reason of the failure, into `done`."""
        self.loading = True
        name = f"load {self.offered.model}"
        threading.Thread(target=_load, args=(self, done), name=name, daemon=True).start()


Loaded = tuple[ModelSlot, EngineProtocol | str]


def _load(slot: ModelSlot, done: queue.SimpleQueue[Loaded]) -> None:
    """Load a model (in its thread); any exception becomes its failure text."""
    name = slot.offered.model
    try:
        done.put((slot, slot.load()))
    except WindlassError as error:
        done.put((slot, f"'{name}' cannot be loaded: {error.message}"))
    except Exception as error:  # noqa: BLE001 - top of the thread: the other models keep serving
        done.put((slot, f"'{name}' cannot be loaded: {type(error).__name__}"))


def release_memory() -> None:
    """Return the memory of an unloaded model to the system; the allocator would keep it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
