"""A real service that grows under load and shrinks after it, and whose gateways count as one."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from windlass.lab.proofs.failover.requests import MODEL, write_model
from windlass.spec.scale import Scale
from windlass.spec.serve import Serve
from windlass.supervisor.autoscale.autoscaler import Autoscale
from windlass.supervisor.autoscale.capacity import ReplicaNeeds, ThisMachine, room_for
from windlass.supervisor.background_service import watched
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

PATIENCE_S = 60.0
CLIENTS = 8
ASK = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 150, "temperature": 0}


class Roomy:
    """Two replicas fit, however small the machine is."""

    def room(self, need: ReplicaNeeds, running: int) -> int:
        assert need.memory_bytes > 0
        return 2


def figure(url: str, name: str) -> float:
    """Ask any gateway; a connection that a killed one had taken is made again."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=3), timeout=PATIENCE_S) as client:
        lines = client.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def wait_for(url: str, name: str, value: float) -> None:
    until = time.monotonic() + PATIENCE_S
    while figure(url, name) != value:
        assert time.monotonic() < until, f"{name} never was {value}"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_replica_comes_under_load_and_leaves_in_calm_and_a_killed_gateway_takes_no_count_along(
    tmp_path: Path,
) -> None:
    serve = Serve(port=0, open=True, slots=2, threads=1, gateways=2)
    scale = Scale(max_replicas=2, calm=2.0)
    autoscale = Autoscale(scale, slots=serve.slots, backend=Roomy())
    statuses: list[int] = []
    stop = threading.Event()

    def ask(url: str) -> None:
        while not stop.is_set():
            statuses.append(httpx.post(f"{url}/v1/completions", json=ASK, timeout=PATIENCE_S).status_code)

    offer = ServiceSpec(MODEL, write_model(tmp_path), serve)
    ready = f'windlass_replicas{{model="{MODEL}",state="ready"}}'
    with watched(Supervisor(offer, tmp_path / "logs", controllers=[autoscale])) as service:
        assert figure(service.url, ready) == 1
        clients = [threading.Thread(target=ask, args=(service.url,)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            wait_for(service.url, ready, 2)
        finally:
            stop.set()
            for client in clients:
                client.join()
        wait_for(service.url, "windlass_replicas{", 1)
        assert set(statuses) == {200}
        assert figure(service.url, "windlass_gateways") == 2
        answered = 'windlass_http_requests_total{route="/v1/completions",status="200"}'
        assert figure(service.url, answered) == len(statuses)
        killed = service.gateways[1].pid
        os.kill(killed, signal.SIGKILL)
        assert figure(service.url, answered) == len(statuses)
        while service.gateways[1].pid == killed:
            service.wait()
        wait_for(service.url, "windlass_gateways", 2)
        assert figure(service.url, answered) == len(statuses)


def test_room_is_what_cores_and_free_memory_allow() -> None:
    need = ReplicaNeeds(cores=2, memory_bytes=4 << 30)
    assert room_for(need, 1, cores=8, free_bytes=64 << 30) == 4
    assert room_for(need, 1, cores=64, free_bytes=9 << 30) == 3
    assert room_for(need, 2, cores=64, free_bytes=-(1 << 30)) == 2
    assert room_for(need, 1, cores=1, free_bytes=64 << 30) == 1


def test_this_machine_has_room_for_what_runs_on_it() -> None:
    assert ThisMachine().room(ReplicaNeeds(cores=1, memory_bytes=1 << 50), running=1) == 1
