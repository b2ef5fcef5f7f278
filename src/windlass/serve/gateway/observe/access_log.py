"""One line of JSON for each request, if asked for: who, what, how much, how long. No prompt, no key.

{"at": "2026-11-16T17:38:56.123+00:00", "id": ..., "trace": ..., "key": ..., "tenant": ..., "route": ...,
 "model": ..., "replica": ..., "status": 200, "code": "", "finish": "stop", "prompt_tokens": 12,
 "tokens": 20, "duration_ms": ..., "overhead_ms": ..., "queue_ms": ..., "first_token_ms": ...}
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.store.store_dir import translate_os_errors

log = logging.getLogger(__name__)


class AccessLog:
    """Appends to a file that several gateways may share: every line is written in one piece.

    A disk that is full costs lines, never an answer; the first loss is said, and the first line after it.
    """

    def __init__(self, path: Path) -> None:
        with translate_os_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lost = 0

    def write(self, journey: RequestTrace, now: float) -> None:
        line = json.dumps(entry_of(journey, now)).encode() + b"\n"
        try:
            os.write(self._file, line)
        except OSError as error:
            if not self._lost:
                log.warning("the access log cannot be written: %s", error.strerror)
            self._lost += 1
        else:
            if self._lost:
                log.warning("the access log is written again; %d lines are lost", self._lost)
            self._lost = 0

    def close(self) -> None:
        os.close(self._file)


def entry_of(journey: RequestTrace, now: float) -> dict[str, Any]:
    """Return what is told of one request."""
    asked, first = journey.asked_at, journey.first_at
    return {
        "at": datetime.fromtimestamp(journey.wall_s, UTC).isoformat(timespec="milliseconds"),
        "id": journey.request_id,
        "trace": journey.trace.id,
        "key": journey.key,
        "tenant": journey.tenant,
        "route": journey.route,
        "model": journey.model,
        "replica": journey.replica,
        "status": journey.status,
        "code": journey.code,
        "finish": journey.finish,
        "prompt_tokens": journey.prompt_tokens,
        "tokens": journey.tokens,
        "duration_ms": _ms(now - journey.began_at),
        "overhead_ms": _ms(journey.overhead_s(now)),
        "queue_ms": _ms(journey.queued_s),
        "first_token_ms": _ms(first - asked) if first else None,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
