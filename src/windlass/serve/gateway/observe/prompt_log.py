"""What was asked, if the operator wants it kept: one line of JSON for each prompt, a file for each day.

    DIRECTORY/prompts-2026-11-16.jsonl   {"at", "id", "key", "tenant", "model", "prompt"}

Personal data are taken out unless the operator says otherwise; keys of ours always are. A thread of its own
decodes, redacts and writes; what it cannot keep up with is dropped, and counted in the next line. Files are
their owner's alone, and leave when they are old.
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
class _Asked:
    """What is to be written; the text is made of the tokens by the thread that writes."""

    at_s: float
    request_id: str
    caller: Caller
    model: str
    prompts: list[list[int]]
    decode: Callable[[list[int]], str]


class PromptLog:
    """The prompts that one gateway was asked; several may share a directory."""

    def __init__(self, folder: Path, *, redacted: bool, keep_s: float) -> None:
        with translate_os_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._keep_s = folder, keep_s
        self._safe = redact if redacted else hide_keys
        self._asked: queue.Queue[_Asked | None] = queue.Queue(QUEUE)
        self._dropped = 0
        self._day = ""
        self._thread = threading.Thread(target=self._run, name="prompts", daemon=True)
        self._thread.start()

    def put(
        self, request_id: str, caller: Caller, requests: Sequence[Work], decode: Callable[[list[int]], str]
    ) -> None:
        """Take the prompts of a request that was admitted; this never waits."""
        if self._asked.full():
            self._dropped += 1
            return
        asked = _Asked(time.time(), request_id, caller, requests[0].model, prompts_of(requests), decode)
        self._asked.put_nowait(asked)

    def close(self) -> None:
        """Write what is left, but wait for it no longer than LAST_WRITE_S."""
        if not self._asked.full():
            self._asked.put_nowait(None)
            self._thread.join(LAST_WRITE_S)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                self._write(asked)
            except OSError as error:
                log.warning("%s: prompts are not kept: %s", self._folder, error.strerror)

    def _write(self, asked: _Asked) -> None:
        at = datetime.fromtimestamp(asked.at_s, UTC)
        if at.strftime("%Y-%m-%d") != self._day:
            self._day = at.strftime("%Y-%m-%d")
            for old in expired([path.name for path in self._folder.iterdir()], at, self._keep_s):
                (self._folder / old).unlink(missing_ok=True)
        lines = b"".join(self._line(asked, at, tokens) for tokens in asked.prompts)
        file = os.open(
            self._folder / f"prompts-{self._day}.jsonl",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            os.write(file, lines)  # at once, so that lines of several gateways do not mix
        finally:
            os.close(file)

    def _line(self, asked: _Asked, at: datetime, tokens: list[int]) -> bytes:
        entry = {
            "at": at.isoformat(timespec="milliseconds"),
            "id": asked.request_id,
            "key": asked.caller.key,
            "tenant": asked.caller.tenant,
            "model": asked.model,
            "prompt": self._safe(asked.decode(tokens)),
        }
        dropped, self._dropped = self._dropped, 0
        if dropped:
            entry["dropped_before"] = str(dropped)
        return json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n"


def prompts_of(requests: Sequence[Work]) -> list[list[int]]:
    """Return the different prompts of a request; answers to the same prompt share it."""
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
