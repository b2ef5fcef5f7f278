"""One model of a shelf: in memory or not, how it comes there and what is left when it goes."""

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
    """What it takes in memory; counted from when its loading begins."""
    load: Callable[[], EngineProtocol]
    station: EngineProtocol | None = None
    loading: bool = False
    leaving: bool = False
    wanted: bool = False
    """To be loaded although nobody has asked for it yet."""
    waiting: list[Request] = field(default_factory=list)
    asked: int = 0
    """When it was last asked for: the number of that request among all."""
    failure: str = ""
    failed_at: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it should be loaded, and is not."""
        return bool(self.waiting or self.wanted) and self.station is None and not self.loading

    @property
    def takes(self) -> bool:
        """Whether requests go straight to it."""
        return self.station is not None and not self.leaving

    @property
    def held_bytes(self) -> int:
        return self.bytes if self.station is not None or self.loading else 0

    def begin(self, done: queue.SimpleQueue[Loaded]) -> None:
        """Load it in a thread, which puts it, or why it cannot be loaded, into `done`."""
        self.loading = True
        name = f"load {self.offered.model}"
        threading.Thread(target=_load, args=(self, done), name=name, daemon=True).start()


Loaded = tuple[ModelSlot, EngineProtocol | str]


def _load(volume: ModelSlot, done: queue.SimpleQueue[Loaded]) -> None:
    """Load a model in its thread; whatever is wrong with it is told as its failure."""
    name = volume.offered.model
    try:
        done.put((volume, volume.load()))
    except WindlassError as error:
        done.put((volume, f"'{name}' cannot be loaded: {error.message}"))
    except Exception as error:  # noqa: BLE001 - the door of the thread: the other models live on
        done.put((volume, f"'{name}' cannot be loaded: {type(error).__name__}"))


def give_back() -> None:
    """Let the system have the memory of a model that is gone; the allocator would keep it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
