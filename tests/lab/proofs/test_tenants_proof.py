"""A hostile tenant beside another: it sees, stops and leaves nothing. Timings are not judged here."""

from __future__ import annotations

import pytest

from windlass.lab.proofs.tenants.tenants_proof import DISK, PROCESSES, prove_tenants


@pytest.mark.long
@pytest.mark.slow
def test_a_hostile_tenant_neither_sees_nor_stops_another() -> None:
    result = prove_tenants(lambda _: None, jobs=1, requests=8)
    figures, guests = result["figures"], result["guests"]
    assert figures["jobs_lost"] == 0
    assert figures["tricks_admitted"] == 0
    assert figures["requests_lost"] == 0
    assert figures["hostile_refused"] > figures["hostile_jobs_taken"]
    assert guests["fill"]["state"] == "failed"
    assert figures["disk_bytes"] > DISK // 2
    if figures["users_apart"]:  # else all have one user id, which docs/guides/tenants.md says plainly
        assert result["seen"] == []
        assert figures["processes_left"] == 0
        assert 0 < figures["forks_made"] < PROCESSES
