"""The names of a version change with the routing table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.service import GatewayService
from windlass.spec.limits import ServeLimits
from windlass.spec.protocol.routing import Route, RoutedModel, Routing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def routing(folder: Path, prod: str) -> Routing:
    models = [
        RoutedModel(version, str(folder), ["base@prod"] if version == prod else [])
        for version in ("base@1", "base@2")
    ]
    return Routing(1, models, [], {"base": Route({"base@1": 1.0})})


def test_an_alias_leads_to_the_version_that_has_it_now(folder: Path) -> None:
    async def play() -> list[str]:
        metrics = Metrics()
        fleet = ReplicaFleet(metrics, Routing(0))
        admission = AdmissionController(ServeLimits(), None, fleet, metrics, holder="test", queue=1)
        service = GatewayService((), fleet, metrics, admission)
        found = []
        for prod in ("base@1", "base@2"):
            await service.apply(routing(folder, prod))
            found.append(service.endpoint("base@prod").id)
        return found

    assert asyncio.run(play()) == ["base@1", "base@2"]
