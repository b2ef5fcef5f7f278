"""Uploads complete directories to a mirror in a background thread.

One thread, the newest directory first: when the store is slower than the writer, directories in between are
skipped and reported as skipped. A failed upload is retried with exponential back-off and jitter until a newer
directory is offered. Nothing here raises into the caller's work; results are reported by a callback.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.protocol.backoff import Backoff
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.store.thread_priority import lower_priority

Outcome = Literal["sent", "failed", "skipped"]
Tell = Callable[[str, Outcome, dict[str, Any]], None]
"""Called with the directory's name, the result and facts, in the upload thread."""
Retain = Callable[[list[str]], Collection[str]]
"""Maps the names of all copies to those to keep."""
BACKOFF = Backoff(first_s=0.5, max_s=60.0)


class Uploads:
    """The queue of directories to upload to one mirror."""

    def __init__(
        self,
        url: str,
        *,
        retain: Retain,
        tell: Tell,
        backoff: Backoff = BACKOFF,
        seed: int | None = None,
    ) -> None:
        self.url = url
        self._retain, self._tell, self._backoff = retain, tell, backoff
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: list[Path] = []
        self._sending: Path | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def offer(self, directory: Path) -> None:
        """Queue a complete directory for upload. Returns at once."""
        with self._changed:
            self._waiting.append(directory)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
                self._thread.start()

    @property
    def pending(self) -> list[str]:
        """The directories that must stay on disk: the one in transfer and those that wait."""
        with self._changed:
            return [path.name for path in (*self._waiting, self._sending) if path is not None]

    def finish(self, within_s: float) -> bool:
        """Wait until all offered directories are sent; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._sending is None, within_s)

    def close(self, within_s: float = 0.0) -> bool:
        """Wait up to `within_s` for the rest, then stop the thread; return whether all was sent."""
        done = self.finish(within_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        lower_priority()
        while (directory := self._next()) is not None:
            self._send(directory)
            with self._changed:
                self._sending = None
                self._changed.notify_all()

    def _next(self) -> Path | None:
        """Take the newest directory and skip those before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            *skipped, self._sending = self._waiting
            self._waiting = []
        for path in skipped:
            self._tell(
                path.name, "skipped", {"message": f"{path.name}: a newer one was complete before it was sent"}
            )
        return self._sending

    def _send(self, directory: Path) -> None:
        attempt, begin = 1, time.monotonic()
        while True:
            try:
                moved = self._push(directory)
            except StoreFailed as failure:
                wait_s = self._backoff.wait_s(attempt, self._random.random())
                facts = {"message": failure.message, "attempt": attempt, "again_in_s": round(wait_s, 2)}
                self._tell(directory.name, "failed", facts)
                if self._is_over(wait_s):
                    return
                attempt += 1
            except WindlassError as failure:  # damaged, or gone meanwhile: sending it again would not help
                self._tell(directory.name, "failed", {"message": failure.message, "attempt": attempt})
                return
            else:
                if not self._closed:
                    seconds = round(time.monotonic() - begin, 3)
                    facts = {"bytes": moved, "seconds": seconds, "attempts": attempt}
                    self._tell(directory.name, "sent", facts)
                return

    def _push(self, directory: Path) -> int:
        mirror = Mirror(StoreDir(self.url))
        moved = mirror.push(directory, stopped=lambda: self._closed)
        if not self._closed:
            mirror.retain(self._retain(mirror.names()))
        return moved

    def _is_over(self, wait_s: float) -> bool:
        """Wait before the next attempt; return whether to give up: closed, or a newer directory is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, wait_s)
            return bool(self._waiting) or self._closed
