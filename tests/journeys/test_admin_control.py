"""An administrator looks at runs and models through the service, plans, and nobody else may."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.lab.proofs.failover.requests import write_model
from windlass.registry.versions import Registry
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
PLAN = {
    "job": {"train": {"tokens": "10B"}, "model": {"parameters": "1B"}},
    "fleet": "8xA100-SXM4-80GB",
    "search": "greedy",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a registered model."""
    folder = tmp_path_factory.mktemp("home")
    made = write_model(folder / "made")
    writer = DirectoryWriter(StoreDir(folder / "whole"))
    for file in made.iterdir():
        if file.name != "manifest.json":
            writer.write(file.name, file.read_bytes())
    writer.commit({"kind": "model"})
    Registry(folder).register("tiny", folder / "whole")
    return folder


@pytest.fixture(scope="module")
def service(home: Path) -> Iterator[dict[str, Any]]:
    words = [sys.executable, "-m", "windlass.cli", "serve", "tiny", "--port", "0", "--home", str(home)]
    with subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def admin(service: dict[str, Any]) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {service['key']}"}
    with httpx.Client(base_url=service["url"], headers=headers, timeout=PATIENCE_S) as client:
        ends = time.monotonic() + PATIENCE_S
        while client.get("/admin/control/v1/jobs").status_code == 503:  # it comes up behind the service
            assert time.monotonic() < ends
            time.sleep(0.1)
        yield client


def test_runs_are_for_administrators(admin: httpx.Client, service: dict[str, Any]) -> None:
    token = admin.post("/admin/keys", json={"name": "app"}).json()["token"]
    url = f"{service['url']}/admin/control/v1/jobs"
    assert admin.get(url).json() == {"jobs": []}
    assert httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=60).status_code == 403
    assert httpx.get(url, timeout=60).status_code == 401


def test_an_administrator_promotes_a_model_and_plans(admin: httpx.Client, home: Path) -> None:
    listed = admin.get("/admin/control/v1/models").json()["models"]
    assert [version["model"] for model in listed for version in model["versions"]] == ["tiny@1"]
    promoted = admin.post("/admin/control/v1/models/tiny/promote", json={"version": 1}).json()
    assert promoted["aliases"] == ["prod"]
    assert Registry(home).aliases("tiny") == {"prod": 1}
    assert admin.get("/admin/audit").json()["data"][-1]["action"] == "model.promote"
    assert admin.post("/admin/control/v1/plan", json=PLAN).json()["outcome"] == "plan"
