"""Checks do not depend on `assert`: under `python -O` the same bodies get the same error codes."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.serve.gateway.test_validation_errors import (
    BAD_CHATS,
    BAD_COMPLETIONS,
    BAD_EMBEDDINGS,
    CHAT,
    COMPLETION,
    EMBEDDING,
)

PROGRAM = """
import json, sys
from windlass.serve.gateway.schemas import requests
from windlass.serve.gateway.schemas.request_body import check
from windlass.http.errors import ApiError

def code(name, body):
    try:
        check(getattr(requests, name), body)
    except ApiError as error:
        return error.code
    return "accepted"

print(json.dumps([sys.flags.optimize, [code(*case) for case in json.load(sys.stdin)]]))
"""
BODIES = [
    *(("CompletionRequest", COMPLETION | change) for change, *_ in BAD_COMPLETIONS),
    *(("ChatRequest", CHAT | change) for change, *_ in BAD_CHATS),
    *(("EmbeddingRequest", EMBEDDING | change) for change, *_ in BAD_EMBEDDINGS),
]


def codes(*options: str) -> tuple[int, list[str]]:
    run = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM],
        input=json.dumps(BODIES),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    level, found = json.loads(run.stdout)
    return level, found


def test_bodies_are_refused_the_same_without_assertions() -> None:
    level, optimised = codes("-O")
    assert level == 1
    assert optimised == codes()[1]
    assert optimised.count("accepted") < len(optimised) / 4
