"""A real job of a tenant under a real control plane, as a user of its own, which nobody else sees."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import windlass
from windlass.cluster.local.local_backend import LocalBackend
from windlass.cluster.process.sandbox import others_can_execute, others_can_import
from windlass.control.api.control_keys import ControlKeys
from windlass.control.tenants.tenant_registry import TenantRegistry
from windlass.spec.tenancy import Allowance, TenantResourceQuota

USERS = range(291_700, 291_710)
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3") if others_can_execute(p)), "")
TEXT = "\n".join(" ".join(f"{(n * k) ** 3 % 9973:x}" for k in range(1, 12)) for n in range(2000))
JOB = """
name = "tiny"
[corpus]
sources = ["data/text.txt"]
document = "line"
[corpus.tokenizer]
kind = "char"
[model]
family = "ngram"
[model.ngram]
order = 2
[cluster]
cores = 1
memory = "3GiB"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not PYTHON or not others_can_import(),
        reason="needs root, and a Python and the code of windlass where other users can reach them",
    ),
]


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tenants-users-", dir="/var/tmp"))
    folder.chmod(0o711)
    yield folder
    backend = LocalBackend(folder / "cluster")
    for standing in backend.survey().groups:
        backend.stop(standing.group.key)
    until = time.monotonic() + 60
    while backend.survey().groups and time.monotonic() < until:
        time.sleep(0.05)
    shutil.rmtree(folder)


@pytest.fixture
def control(home: Path) -> Iterator[str]:
    source = str(Path(windlass.__file__).parents[1])
    users = f"{USERS.start}-{USERS.stop - 1}"
    command = [sys.executable, "-m", "windlass.cli", "control", "--home", str(home), "--port", "0", "--json",
               "--tenant-users", users, "--tenant-python", PYTHON]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source, "AWS_SECRET_ACCESS_KEY": "of the plane"},
    )
    assert process.stdout is not None
    told = ""
    while not told.rstrip().endswith("}"):
        line = process.stdout.readline().decode()
        assert line, "the control process ended at its start"
        told += line
    yield str(json.loads(told)["url"])
    process.send_signal(signal.SIGINT)
    process.wait(30)
    process.stdout.close()


def test_a_tenants_job_trains_as_its_own_user(home: Path, control: str) -> None:
    registry, keys = TenantRegistry(home, users=USERS, python=PYTHON), ControlKeys(home)
    quota = TenantResourceQuota(cores=1, memory=4 << 30, processes=400, disk=2 << 30, log=4 << 20)
    registry.allow("acme", lambda _: Allowance(quota=quota), "test")
    own = registry.context("acme")
    (own.home / "data").mkdir(parents=True)
    (own.home / "data" / "text.txt").write_text(TEXT)
    for path in (own.home, *own.home.rglob("*")):
        os.chown(path, own.uid or 0, own.uid or 0)
    tokens = {tenant: keys.make(tenant, tenant=tenant) for tenant in ("acme", "rival")}

    def ask(who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {tokens[who]}"}
        return httpx.request(method, control + path, headers=headers, timeout=30, **more)

    assert ask("acme", "POST", "/v1/queue", json={"job": JOB}).status_code == 201
    until = time.monotonic() + 120
    job: dict[str, Any] = {"phase": ""}
    while job["phase"] not in ("done", "failed") and time.monotonic() < until:
        time.sleep(0.2)
        job = ask("acme", "GET", "/v1/queue/tiny").json()
    logs = "".join(p.read_text() for p in (home / "cluster" / "logs" / "acme").glob("*.log"))
    assert job["phase"] == "done", (job, logs)
    assert [model["name"] for model in ask("acme", "GET", "/v1/models").json()["models"]] == ["tiny"]
    assert ask("acme", "GET", "/v1/jobs").json()["jobs"][0]["state"] == "finished"
    assert ask("acme", "GET", "/v1/queue/tiny/journal").json()["records"]
    assert {path.lstat().st_uid for path in own.home.rglob("*")} == {own.uid}
    for path in ("/v1/models", "/v1/jobs", "/v1/queue"):
        assert "tiny" not in ask("rival", "GET", path).text
    assert ask("rival", "GET", "/v1/queue/tiny").status_code == 404
