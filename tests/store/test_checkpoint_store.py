"""Checkpoints that go to a real S3 server over a network that fails: nothing waits, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from torch import nn

from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.parallel.param_shard import holdings_of
from windlass.parallel.process_group import SingleProcess
from windlass.spec.job import Job
from windlass.spec.layout import Layout, Partition
from windlass.train.checkpoint.async_save import State
from windlass.train.checkpoint.checkpointer import Checkpointer, Copies

pytestmark = pytest.mark.slow

SAVES = 8
CALM_S = 120.0
CUT = Partition(pieces=(), features={}, how="by hand")


@pytest.fixture
def bad_network(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    import s3fs

    there = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert there.hostname is not None
    assert there.port is not None
    with FaultProxy(there.hostname, there.port, FaultRates(cut=0.5, error=0.5)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()


def test_training_does_not_wait_and_the_newest_arrives(
    bad_network: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "learner" / "1"
    folder.mkdir(parents=True)
    events: list[dict[str, Any]] = []
    failed = threading.Event()

    def tell(event: str, **facts: Any) -> None:
        events.append({"event": event, **facts})
        if "attempt" in facts:
            failed.set()

    job = Job.model_validate({"checkpoint": {"store": f"{s3_url}/runs"}})
    checkpoints = Checkpointer(folder, job, tell)
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(SAVES):  # nothing gets through yet: one that waited for the store would never end
        checkpoints.save(
            State(step, step, 1.0),
            holdings_of(model),
            optimizer,
            group=SingleProcess(),
            layout=Layout(),
            cut=CUT,
        )
        assert checkpoints.saving
        checkpoints.finish_copy()
        model.weight.data.fill_(float(step + 1))
        checkpoints.poll()
    assert failed.wait(CALM_S)
    bad_network.faults = FaultRates(late=0.3, late_s=0.2, cut=0.1, error=0.1)  # it is getting better
    checkpoints.close(CALM_S)
    bad_network.faults = FaultRates()
    told = json.dumps(events)
    assert [e["step"] for e in events if e.get("tier") == "local"] == list(range(SAVES)), told
    sent = [e["step"] for e in events if e["event"] == "checkpoint" and e["tier"] == "store"]
    assert sent[-1] == SAVES - 1, told
    assert bad_network.counts.keys() >= {"cut", "error", "late"}
    shutil.rmtree(folder / "checkpoints")
    copies = Copies.of(folder)
    assert copies is not None
    assert copies.names()[-1] == f"step-{SAVES - 1:08d}"
    state, _, _ = checkpoints.load(holdings_of(model), optimizer, group=SingleProcess())
    assert state == State(SAVES - 1, SAVES - 1, 1.0)
    assert model.weight.unique().tolist() == [SAVES - 1]
