"""The word2vec stage on servers and workers that are threads."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from windlass.models.word2vec_files import load_vectors
from windlass.parallel.process_group import SingleProcess
from windlass.spec.run import JOURNAL, Run
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.event_log import EventLog
from windlass.train.loop import save_run
from windlass.train.word2vec import learner
from windlass.train.word2vec.start import prepare

pytestmark = pytest.mark.slow
MakeRun = Callable[..., Run]
MLP = {"family": "mlp", "heads": None, "mlp": {"window": 4, "word2vec_epochs": 2}}


def _load_server_group() -> ModuleType:
    spec = importlib.util.spec_from_file_location("server_group", Path(__file__).with_name("server_group.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["server_group"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LocalCluster = _load_server_group().LocalCluster


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be several chunks and blocks, the last of each shorter than the others."""
    monkeypatch.setattr(learner, "CHUNK_TOKENS", 7000)
    monkeypatch.setattr(learner, "BLOCK_TOKENS", 2000)


def served(make_run: MakeRun, workers: int = 1, **sync: Any) -> Run:
    sync = {"policy": "server", "servers": 2, **sync}
    return make_run(model=MLP, train={"batch_sequences": 6}, layout={"dp": workers}, sync=sync)


def vectors(folder: Path) -> tuple[Any, Any]:
    found = load_vectors(folder / "word2vec")
    assert found is not None
    return found.inputs_VD, found.outputs_VD


def local(run: Run, folder: Path) -> Path:
    folder.mkdir()
    job = run.job.model_copy(update={"sync": Sync()})
    save_run(folder, run.model_copy(update={"job": job}))
    record = EventLog(folder, quiet=True)
    assert prepare(run, folder, record, SingleProcess(), lambda: False)
    return folder


def on_servers(run: Run, folder: Path, workers: int, stopped: Callable[[Any], bool] = lambda _: False) -> str:
    """Do the stage; return how it ended."""
    cluster = LocalCluster(run, folder)
    for number in range(workers):
        cluster.start_worker(f"worker {number}", one_stage=True)
    return str(cluster.train(lambda: stopped(cluster.primary)))


def passes(folder: Path) -> list[dict[str, Any]]:
    return [r for r in Journal(StoreDir(folder), JOURNAL).read() if r["event"] == "vectors"]


def test_one_synchronous_worker_learns_the_bits_of_the_local_run(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    assert on_servers(run, tmp_path / "served", 1) == "finished"
    local(run, tmp_path / "local")
    for ours, theirs in zip(vectors(tmp_path / "served"), vectors(tmp_path / "local"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    mine, other = passes(tmp_path / "served"), passes(tmp_path / "local")
    assert [r["pairs"] for r in mine] == [r["pairs"] for r in other]
    assert mine[1]["loss"] == pytest.approx(other[1]["loss"], rel=0.05)


def test_stopped_and_resumed_it_learns_the_same(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, workers=2)
    assert on_servers(run, tmp_path / "whole", 2) == "finished"
    assert on_servers(run, tmp_path / "broken", 2, lambda primary: primary.step >= 5) == "stopped"
    assert on_servers(run, tmp_path / "broken", 1) == "finished"
    for ours, theirs in zip(vectors(tmp_path / "whole"), vectors(tmp_path / "broken"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("sync", [{"mode": "asynchronous"}, {"mode": "bounded", "staleness": 0}])
def test_without_waiting_every_pair_is_learnt_from_once(
    make_run: MakeRun, tmp_path: Path, sync: dict[str, Any]
) -> None:
    run = served(make_run, workers=3, **sync)
    assert on_servers(run, tmp_path / "served", 3) == "finished"
    local(run, tmp_path / "local")
    ours, theirs = passes(tmp_path / "served"), passes(tmp_path / "local")
    assert [r["pairs"] for r in ours] == [r["pairs"] for r in theirs]
    assert all(r["updates"] % 3 == 0 and r["bytes_sent"] > 0 for r in ours)
    assert ours[1]["loss"] < 1.1 * theirs[1]["loss"]


def test_who_dies_at_the_end_of_a_pass_leaves_it_to_a_successor(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    cluster = LocalCluster(run, tmp_path / "broken")
    cluster.start_worker("worker", one_stage=True)
    end_of_a_pass = cluster.primary.task.limit(0)

    def die() -> bool:
        if cluster.primary.step == end_of_a_pass:
            raise ConnectionAbortedError
        return False

    with pytest.raises(ConnectionAbortedError):
        cluster.train(die)
    assert passes(tmp_path / "broken") == []
    assert on_servers(run, tmp_path / "broken", 1) == "finished"
    assert [r["epoch"] for r in passes(tmp_path / "broken")] == [1, 2]
    local(run, tmp_path / "local")
    for ours, theirs in zip(vectors(tmp_path / "broken"), vectors(tmp_path / "local"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
