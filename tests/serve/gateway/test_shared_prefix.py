"""The gateway marks requests of tenants that share cached prefixes."""

from pathlib import Path
from typing import Any

import httpx

from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.serve.records.tenants import Tenants, TenantSettings
from windlass.spec.protocol.wire import Generate
from windlass.store.database import sqlite_url

ASKED = {"model": "tiny", "prompt": "the fox", "max_tokens": 2}
ME = Actor("", "cli tester")


def test_the_engine_gets_a_tenants_choice_and_its_change(
    tmp_path: Path, engine: Any, start_gateway: Any
) -> None:
    state = open_state(sqlite_url(tmp_path / "service.db"))
    keys, tenants = ApiKeys(state), Tenants(state)
    tenants.make("acme", ME, settings=TenantSettings(shared_prefix=True))
    _, token = keys.make("app", ME, tenant="acme")
    gateway = start_gateway(access=Access(keys=keys))
    gateway.wait_until("/readyz", 200)
    head = {"authorization": f"Bearer {token}"}
    for choice in (True, False):
        tenants.set("acme", ME, settings=TenantSettings(shared_prefix=choice))
        with httpx.Client(base_url=gateway.url, headers=head, timeout=20) as client:
            reply = client.post(
                "/v1/completions", json={"model": "tiny", "prompt": "the fox", "max_tokens": 2}
            )
        assert reply.status_code == 200
        request = engine.of(Generate)[-1]
        assert (request.tenant, request.shared_prefix) == ("acme", choice)
    state.close()
