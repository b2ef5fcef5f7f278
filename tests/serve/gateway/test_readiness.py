"""Readiness: every served name needs a connected replica, of its version or of a standby."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.http.errors import ApiError
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.protocol.routing import Route, RoutedReplica, Routing
from windlass.spec.protocol.wire import Ready, frame


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, as sockets need."""
    path = Path(tempfile.mkdtemp(prefix="wl"))
    yield path
    shutil.rmtree(path)


def ready_with(folder: Path, routes: dict[str, Route]) -> None:
    """Raise unless a gateway is ready that has these routes and one engine, of base@1."""

    async def play() -> None:
        greeting = frame(Ready("base@1", "llama", 1, 64, 300, 8, 2, 1))
        server = await asyncio.start_unix_server(lambda _, writer: writer.write(greeting), folder / "s")
        replicas = [RoutedReplica("r1", str(folder / "s"), ["base@1"])]
        fleet = ReplicaFleet(Metrics(), Routing(1, [], replicas, routes))
        running = asyncio.create_task(fleet.run())
        while not fleet.alive():
            await asyncio.sleep(0.01)
        try:
            fleet.check_ready()
        finally:
            running.cancel()
            server.close()

    asyncio.run(play())


def test_a_gateway_is_ready_when_every_name_has_a_version_that_answers(folder: Path) -> None:
    ready_with(folder, {"base": Route({"base@1": 0.9, "base@2": 0.1})})


def test_a_version_that_stands_by_is_enough(folder: Path) -> None:
    ready_with(folder, {"base": Route({"base@2": 1.0}, standby=["base@1"])})


def test_a_name_without_a_replica_is_named(folder: Path) -> None:
    with pytest.raises(ApiError, match="no engine for 'other'"):
        ready_with(folder, {"base": Route({"base@1": 1.0}), "other": Route({"other@1": 1.0})})
