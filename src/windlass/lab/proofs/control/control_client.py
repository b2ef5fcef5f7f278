"""A client of several control processes: tries in turn, until a process answers.

The SDK's clients are in a package of the same layer, so the proof has its own, with a single call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import httpx

AGAIN_S = 0.1


class ControlClient:
    """Submits jobs; a submit whose answer was lost is repeated with the same idempotency key."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._urls = list(urls)
        self._http = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=10.0)

    def close(self) -> None:
        self._http.close()

    def submit(self, text: str, *, priority: int = 0, patience_s: float = 120.0) -> dict[str, Any] | None:
        """Return the state of the job; None if no process accepted it in time."""
        body, headers = {"job": text, "priority": priority}, {"idempotency-key": secrets.token_urlsafe(16)}
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            for url in self._urls:
                try:
                    answer = self._http.post(f"{url}/v1/queue", json=body, headers=headers)
                except httpx.TransportError:
                    continue
                if answer.status_code in (200, 201):
                    job: dict[str, Any] = answer.json()
                    return job
            time.sleep(AGAIN_S)
        return None
