"""Verifies every n-th checkpoint, in a process of its own at low priority.

The result is logged as a `verified` event. One verification runs at a time; checkpoints offered meanwhile are
skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.processes import CHECKPOINT_VERIFY


class CheckpointVerifier:
    """Counts checkpoints and verifies every `every`-th."""

    def __init__(self, folder: Path, every: int | None, emit: Callable[..., None]) -> None:
        self._folder, self._every, self._emit = folder, every, emit
        self._count = self._step = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    @property
    def in_progress(self) -> list[str]:
        """The checkpoint being verified, which must not be deleted."""
        busy = self._thread is not None and self._thread.is_alive()
        return [f"step-{self._step:08d}"] if busy else []

    def offer(self, step: int) -> None:
        """Offer a finished checkpoint for verification; returns at once."""
        self._count += 1
        if self._every is not None and self._count % self._every == 0 and not self.in_progress:
            self._step = step
            self._thread = threading.Thread(target=self._check, args=(step,), name="check", daemon=True)
            self._thread.start()

    def close(self, within_s: float = 0.0) -> None:
        """Give a running verification some time, then kill it."""
        if self._thread is not None:
            self._thread.join(within_s)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._thread is not None:
            self._thread.join()

    def _check(self, step: int) -> None:
        begin = time.monotonic()
        command = [
            sys.executable,
            "-m",
            CHECKPOINT_VERIFY,
            str(self._folder),
            "--step",
            str(step),
            "--background",
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said, trouble = self._process.communicate()
        if self._process.returncode < 0:
            return  # ended by `close`, or with the whole machine
        found = _last(said) or {"ok": False, "message": trouble.decode(errors="replace")[-500:]}
        facts = {"ok": found["ok"], "message": found["message"]}
        self._emit("verified", step=step, **facts, seconds=round(time.monotonic() - begin, 2))


def _last(said: bytes) -> dict[str, Any] | None:
    """Return the last result that the verifier printed, or its error as a result."""
    for line in reversed(said.splitlines()):
        event = json.loads(line)
        if "done" in event:
            done: dict[str, Any] = event["done"]
            return done
        if "error" in event:
            return {"ok": False, "message": event["error"]["message"]}
    return None
