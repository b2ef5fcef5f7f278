"""Serves a model for one completion."""

from __future__ import annotations

from pathlib import Path

import httpx

from windlass.registry.versions import Version
from windlass.spec.errors import ProcessFailed
from windlass.spec.serve import Serve
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

PROMPT = "The "
TOKENS = 8
ANSWER_S = 120.0


def answer_of(version: Version, logs: Path, *, state: str | None = None, key: str | None = None) -> str:
    """Return a completion of a version; with the API keys of `state`, or without authentication."""
    serve = Serve(port=0, slots=1, threads=1, open=state is None, state=state)
    body = {"model": str(version), "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.0}
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    with Supervisor(ServiceSpec(str(version), version.path, serve), logs) as service:
        reply = httpx.post(f"{service.url}/v1/completions", json=body, headers=headers, timeout=ANSWER_S)
    if reply.status_code != 200:
        raise ProcessFailed(
            f"{version} answered a completion with status {reply.status_code}: {reply.text[:200]}"
        )
    return str(reply.json()["choices"][0]["text"])
