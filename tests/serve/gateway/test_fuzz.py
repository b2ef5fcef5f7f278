"""Fuzzing by the document: what it allows, what it forbids, on every route, with and without keys.

Nothing may crash the gateway or be answered 5xx, every answer must be one that the document describes, and
what the document forbids must be refused. The draws are fixed, so that a failure comes again; more of them:
WINDLASS_FUZZ=200 pytest tests/serve/gateway/test_fuzz.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from windlass.control.api.app import build_app
from windlass.control.api.control_keys import GatewayKey
from windlass.control.api.control_server import bind_socket
from windlass.http.listener import settings as uvicorn_settings
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.store.database import sqlite_url
from windlass.supervisor.control_child import write_key

EXAMPLES = int(os.environ.get("WINDLASS_FUZZ", "8"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Callers:
    """A gateway with keys and state, and the headers of those who call it."""

    url: str
    nobody: dict[str, str]
    user: dict[str, str]
    admin: dict[str, str]

    def all(self, scope: str | None) -> list[tuple[dict[str, str], bool]]:
        """Return every caller, and whether it may pass a route of that scope."""
        return [(self.nobody, scope is None), (self.user, scope in (None, "use")), (self.admin, True)]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    """A control process, of a home where nothing is."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    socket = folder / "control"
    key = GatewayKey(write_key(socket).read_text())
    own = uvicorn_settings() | {"loop": "asyncio"}
    server = uvicorn.Server(uvicorn.Config(build_app(tmp_path, keys=key), **own))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bind_socket(socket)]})
    thread.start()
    yield socket
    server.should_exit = True
    thread.join()
    shutil.rmtree(folder)


@pytest.fixture
def callers(start_gateway: Any, engine: Any, control: Path, tmp_path: Path) -> Iterator[Callers]:
    engine.slots = 64
    state = open_state(sqlite_url(tmp_path / "service.db"))
    keys, me = ApiKeys(state), Actor("", "test")
    tokens = [keys.make("user", me)[1], keys.make("root", me, scopes=["use", "admin", "metrics"])[1]]
    gateway = start_gateway(access=Access(keys=keys), patience_s=20)
    gateway.service.database = state
    gateway.service.control = Upstream.at(control)
    gateway.wait_until("/readyz", 200)
    yield Callers(gateway.url, {}, *({"authorization": f"Bearer {token}"} for token in tokens))
    assert httpx.get(f"{gateway.url}/healthz", timeout=60).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_route_answers_as_its_document_says(callers: Callers, mode: GenerationMode) -> None:
    document = httpx.get(f"{callers.url}/openapi.json", headers=callers.admin, timeout=60).json()
    for operations in document["paths"].values():
        for operation in operations.values():
            del operation["security"]  # keys are not drawn: every draw is sent with each
    tried = 0
    with requests.Session() as session:
        for result in schemathesis.openapi.from_dict(document).get_all_operations():
            fuzz(result.ok(), mode, callers, session)
            tried += 1
    assert tried == sum(len(operations) for operations in document["paths"].values())


def fuzz(operation: Any, mode: GenerationMode, callers: Callers, session: requests.Session) -> None:
    """Try one route with draws of one kind, each as every caller."""
    scope = operation.definition.raw["x-scope"]

    @seed(7)
    @SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Case) -> None:
        if mode.is_positive and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "tiny"  # what is well-formed reaches the engine
        for headers, may_pass in callers.all(scope):
            response = case.call(base_url=callers.url, headers=headers, session=session)
            case.validate_response(response, checks=CHECKS, headers=headers)
            assert may_pass or response.status_code in (400, 401, 403)

    with suppress(Unsatisfiable):  # a route without body and parameters can only be asked rightly
        attempt()
