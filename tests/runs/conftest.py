"""Runs as `windlass train` writes them down, without any process that trains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.runs.training import RunFolder
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.store.journal import Journal
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

Start = Callable[..., RunFolder]
Tell = Callable[..., None]
Finish = Callable[[RunFolder], None]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Plan a run and write it down."""

    def begin(number: int = 1, **tables: Any) -> RunFolder:
        given = {"layout": {"dp": 2}, **tables}
        job = Job.model_validate(
            {
                "name": "poems",
                "model": {"layers": 4, "width": 64},
                "train": {"steps": 100, "batch_sequences": 8},
                **given,
            }
        )
        corpus = CorpusFacts("corpus", "digest", 512, 1_000_000, 100_000)
        run = plan_run(job, corpus, MachineFacts(2, 8 << 30, 1e11, False))
        path = tmp_path / "runs" / "poems" / str(number)
        StoreDir(path).write(RUN_FILE, run.model_dump_json().encode())
        return RunFolder(path)

    return begin


@pytest.fixture
def tell() -> Tell:
    """Add a record to a run's journal."""

    def append(folder: RunFolder, **record: Any) -> None:
        Journal(StoreDir(folder.path), JOURNAL).append({"time": 1.0, **record})

    return append


@pytest.fixture
def finish() -> Finish:
    """Leave a result, by which a run has finished."""
    return lambda folder: DirectoryWriter(StoreDir(folder.result)).commit({})
