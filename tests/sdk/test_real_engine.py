"""Streams that go on, with real engines: two services of real processes, one of which is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from windlass.lab.proofs.failover.requests import MODEL, write_model
from windlass.spec.serve import Serve
from windlass.supervisor.background_service import watched
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow

PROMPT = "The anchor and the rope"
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "seed": 11, "max_tokens": 200}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Supervisor]]:
    folder = tmp_path_factory.mktemp("services")
    offer = ServiceSpec(f"{MODEL}@1", write_model(folder), Serve(port=0, open=True, threads=1))
    with (
        watched(Supervisor(offer, folder / "a")) as first,
        watched(Supervisor(offer, folder / "b")) as second,
    ):
        yield [first, second]


def test_a_sampled_text_continues_over_torn_connections_and_at_another_service(
    blocking: Any, services: list[Supervisor], proxy: Any
) -> None:
    first, second = (service.url for service in services)
    whole = blocking.client(second).complete(PROMPT, **SAMPLED).text
    assert len(whole) > 200
    way = proxy(first)
    way.cuts = [1000, 1000, 1000]  # tokens that come together take fewer bytes: a busy machine sends less
    stream = blocking.client([way.url, second], model=MODEL).stream(PROMPT, **SAMPLED)
    assert "".join(stream) == whole
    assert stream.result.resumed == 1, "the first cut sent it to the other service"
    way.cuts = [1000, 1000, 1000]
    alone = blocking.client(way.url, model=MODEL).stream(PROMPT, **SAMPLED)
    assert "".join(alone) == whole
    assert alone.result.resumed >= 2


def test_a_killed_gateway_loses_no_character(blocking: Any, services: list[Supervisor]) -> None:
    first, second = services
    whole = blocking.client(second.url).complete(PROMPT, **SAMPLED).text
    stream = blocking.client([first.url, second.url], model=MODEL).stream(PROMPT, **SAMPLED)
    begun = [next(stream) for _ in range(3)]
    gateways = gateways_of(first)
    assert gateways
    for process in gateways:
        os.kill(process, signal.SIGKILL)
    assert "".join([*begun, *stream]) == whole


def gateways_of(service: Supervisor) -> list[int]:
    """Return the processes that hold the port of a service."""
    port = int(service.url.rpartition(":")[2])
    children = psutil.Process().children(recursive=True)
    return [
        child.pid
        for child in children
        if any(held.laddr and held.laddr.port == port for held in child.net_connections("tcp"))
    ]
