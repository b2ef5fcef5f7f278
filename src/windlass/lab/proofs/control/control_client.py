"""Asks control processes as a client does: one after the other, until one answers.

The clients of the SDK live on the same floor as this room, so a proof brings its own, which is one call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import httpx

AGAIN_S = 0.1


class ControlClient:
    """Submits jobs; a submit whose answer was lost is sent again, with the key that it had."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._urls = list(urls)
        self._http = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=10.0)

    def close(self) -> None:
        self._http.close()

    def submit(self, text: str, *, priority: int = 0, patience_s: float = 120.0) -> dict[str, Any] | None:
        """Return how the job stands; None when nobody took it in time."""
        body, headers = {"job": text, "priority": priority}, {"idempotency-key": secrets.token_urlsafe(16)}
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            for url in self._urls:
                try:
                    answer = self._http.post(f"{url}/v1/queue", json=body, headers=headers)
                except httpx.TransportError:
                    continue
                if answer.status_code in (200, 201):
                    told: dict[str, Any] = answer.json()
                    return told
            time.sleep(AGAIN_S)
        return None
