"""The access log, if enabled: one line of JSON for each request, without prompts and secrets.

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
    """Appends to a file that several gateways may share: every line is one write.

    A full disk loses lines, never answers; the gateway logs the first lost line and the recovery.
    """

    def __init__(self, path: Path) -> None:
        with translate_os_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lost = 0

    def write(self, trace: RequestTrace, now: float) -> None:
        line = json.dumps(entry_of(trace, now)).encode() + b"\n"
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


def entry_of(trace: RequestTrace, now: float) -> dict[str, Any]:
    """Return the entry of one request."""
    return {
        "at": datetime.fromtimestamp(trace.wall_s, UTC).isoformat(timespec="milliseconds"),
        "id": trace.request_id,
        "trace": trace.context.id,
        "key": trace.key,
        "tenant": trace.tenant,
        "route": trace.route,
        "model": trace.model,
        "replica": trace.replica,
        "status": trace.status,
        "code": trace.code,
        "finish": trace.finish,
        "prompt_tokens": trace.prompt_tokens,
        "tokens": trace.tokens,
        "duration_ms": _ms(now - trace.began_at),
        "overhead_ms": _ms(trace.overhead_s(now)),
        "queue_ms": _ms(trace.queued_s),
        "first_token_ms": _ms(trace.first_at - trace.submitted_at) if trace.first_at else None,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
