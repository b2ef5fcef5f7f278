"""The prompt log, if the operator enables it: one line of JSON for each prompt, a file for each day.

    DIRECTORY/prompts-2026-11-16.jsonl   {"at", "id", "key", "tenant", "model", "prompt"}

Personal data are redacted unless the operator disables that; API keys always are. A separate thread decodes,
redacts and writes; prompts that do not fit its queue are dropped, and counted in the next line. Only the
owner can read the files, and old files are deleted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from windlass.serve.gateway.caller import Caller
from windlass.serve.records.redaction import hide_keys, redact
from windlass.spec.protocol.wire import Embed, Work
from windlass.store.store_dir import translate_os_errors

QUEUE = 1024
LAST_WRITE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _LogEntry:
    """A request to write; the writing thread decodes the tokens."""

    at_s: float
    request_id: str
    caller: Caller
    model: str
    prompts: list[list[int]]
    decode: Callable[[list[int]], str]


class PromptLog:
    """The prompts of one gateway; several gateways may share a directory."""

    def __init__(self, folder: Path, *, redacted: bool, keep_s: float) -> None:
        with translate_os_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._keep_s = folder, keep_s
        self._safe = redact if redacted else hide_keys
        self._entries: queue.Queue[_LogEntry | None] = queue.Queue(QUEUE)
        self._dropped = 0
        self._day = ""
        self._thread = threading.Thread(target=self._run, name="prompts", daemon=True)
        self._thread.start()

    def put(
        self, request_id: str, caller: Caller, requests: Sequence[Work], decode: Callable[[list[int]], str]
    ) -> None:
        """Queue the prompts of an admitted request; this never waits."""
        if self._entries.full():
            self._dropped += 1
            return
        entry = _LogEntry(time.time(), request_id, caller, requests[0].model, prompts_of(requests), decode)
        self._entries.put_nowait(entry)

    def close(self) -> None:
        """Write the queued prompts, for at most LAST_WRITE_S."""
        if not self._entries.full():
            self._entries.put_nowait(None)
            self._thread.join(LAST_WRITE_S)

    def _run(self) -> None:
        while (entry := self._entries.get()) is not None:
            try:
                self._write(entry)
            except OSError as error:
                log.warning("%s: prompts are not logged: %s", self._folder, error.strerror)

    def _write(self, entry: _LogEntry) -> None:
        at = datetime.fromtimestamp(entry.at_s, UTC)
        if at.strftime("%Y-%m-%d") != self._day:
            self._day = at.strftime("%Y-%m-%d")
            for old in expired([path.name for path in self._folder.iterdir()], at, self._keep_s):
                (self._folder / old).unlink(missing_ok=True)
        lines = b"".join(self._line(entry, at, tokens) for tokens in entry.prompts)
        file = os.open(
            self._folder / f"prompts-{self._day}.jsonl",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            os.write(file, lines)  # one write, so that lines of several gateways do not mix
        finally:
            os.close(file)

    def _line(self, entry: _LogEntry, at: datetime, tokens: list[int]) -> bytes:
        line = {
            "at": at.isoformat(timespec="milliseconds"),
            "id": entry.request_id,
            "key": entry.caller.key,
            "tenant": entry.caller.tenant,
            "model": entry.model,
            "prompt": self._safe(entry.decode(tokens)),
        }
        dropped, self._dropped = self._dropped, 0
        if dropped:
            line["dropped_before"] = str(dropped)
        return json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"


def prompts_of(requests: Sequence[Work]) -> list[list[int]]:
    """Return the distinct prompts of a request; several answers may share one."""
    found: dict[int, list[int]] = {}
    for request in requests:
        for tokens in request.inputs if isinstance(request, Embed) else [request.tokens]:
            found[id(tokens)] = tokens
    return list(found.values())


def expired(names: Sequence[str], now: datetime, keep_s: float) -> list[str]:
    """Return the files whose whole day is older than `keep_s`."""
    found = []
    for name in names:
        try:
            day = datetime.strptime(name, "prompts-%Y-%m-%d.jsonl").replace(tzinfo=UTC)
        except ValueError:
            continue
        if day + timedelta(days=1, seconds=keep_s) <= now:
            found.append(name)
    return sorted(found)
