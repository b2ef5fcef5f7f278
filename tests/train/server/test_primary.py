"""Runs on servers and workers that are threads: what is learned, told, saved and handed over."""

import importlib.util
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from windlass.runs.audit import audit
from windlass.spec.run import CHECKPOINTS, JOURNAL, Run
from windlass.spec.settings import AS_PLANNED
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.settings_file import drafted, write
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.loop import save_run, train

pytestmark = pytest.mark.slow
MakeRun = Callable[..., Run]


def _load_server_group() -> ModuleType:
    spec = importlib.util.spec_from_file_location("server_group", Path(__file__).with_name("server_group.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["server_group"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LocalCluster = _load_server_group().LocalCluster


def served(make_run: MakeRun, *, workers: int = 1, model: dict[str, Any] | None = None, **sync: Any) -> Run:
    return make_run(
        train={"steps": 12, "checkpoint_every": 5, "evaluate_every": 6, "batch_sequences": 6},
        model=model or {},
        layout={"dp": workers},
        sync={"policy": "server", "servers": 2, **sync},
    )


def done(run: Run, folder: Path, workers: int) -> list[dict[str, Any]]:
    """Do a run, and return what its journal tells."""
    cluster = LocalCluster(run, folder)
    for number in range(workers):
        cluster.start_worker(f"worker {number}")
    assert cluster.train() == "finished"
    return records(folder)


def records(folder: Path) -> list[dict[str, Any]]:
    return list(Journal(StoreDir(folder), JOURNAL).read())


def local(run: Run, folder: Path) -> Path:
    """Do the same without servers."""
    job = run.job.model_copy(update={"sync": Sync(), "layout": type(run.layout)()})
    save_run(folder, run.model_copy(update={"job": job, "layout": type(run.layout)()}))
    assert train(folder, lambda: False)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    source = CheckpointReader(committed(folder / CHECKPOINTS)[-1])
    kinds = (None, "first", "second")
    return {f"{name} {kind}": source.read(name, kind=kind) for name in source.names() for kind in kinds}


def apart(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.parametrize(
    "model",
    [
        {"family": "llama"},
        {"family": "llama", "tied": False},
        {"family": "gpt2"},
        {"family": "bert"},
        {"family": "mlp", "heads": None, "mlp": {"start": "random", "window": 4}},
    ],
)
def test_one_worker_ends_with_the_bits_of_the_local_run(
    make_run: MakeRun, tmp_path: Path, model: dict[str, Any]
) -> None:
    run = served(make_run, model=model)
    told = done(run, tmp_path / "served", workers=1)
    assert apart(tmp_path / "served", local(run, tmp_path / "local")) == 0
    alone = records(tmp_path / "local")
    kinds = Counter(r["event"] for r in alone if r["event"] not in ("ledger", "started"))
    assert kinds == Counter(r["event"] for r in told if r["event"] not in ("ledger", "started"))
    for event, key in (
        ("step", "loss"),
        ("step", "gradient_norm"),
        ("evaluation", "loss"),
        ("sample", "text"),
    ):
        ours = [r[key] for r in told if r["event"] == event]
        assert ours == [r[key] for r in alone if r["event"] == event], (event, key)


def test_rows_that_a_batch_does_not_touch_are_not_sent(make_run: MakeRun, tmp_path: Path) -> None:
    sent = {}
    for tied in (False, True):
        run = served(make_run, model={"tied": tied})
        shape = run.network.model_copy(update={"vocabulary": 5000})
        told = done(run.model_copy(update={"shape": shape}), tmp_path / str(tied), workers=1)
        sent[tied] = told[-1]["bytes_sent"]
    assert sent[False] < 1.2 * sent[True], "twice the matrices, but of one only the rows of tokens"


def test_workers_that_divide_batches_learn_what_one_learns(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, workers=2)
    done(run, tmp_path / "two", workers=2)
    assert 0 < apart(tmp_path / "two", local(run, tmp_path / "local")) < 1e-4
    assert audit(tmp_path / "two").ok
    done(run, tmp_path / "again", workers=1)
    assert apart(tmp_path / "two", tmp_path / "again") == 0, (
        "the parts are those of the job, whoever is there"
    )


@pytest.mark.parametrize("sync", [{"mode": "asynchronous"}, {"mode": "bounded", "staleness": 0}])
def test_workers_with_batches_of_their_own_use_every_sample_once(
    make_run: MakeRun, tmp_path: Path, sync: dict[str, Any]
) -> None:
    run = served(make_run, workers=3, **sync)
    told = done(run, tmp_path, workers=3)
    found = audit(tmp_path)
    assert found.ok, found.reasons
    assert found.samples_used == run.steps * run.batch_sequences
    stale = {int(key): count for key, count in told[-1]["staleness"].items()}
    assert sum(stale.values()) == told[-1]["updates"] == 3 * run.steps, "every push is an update of its own"
    assert max(stale) > 0
    assert sync["mode"] == "asynchronous" or max(stale) <= 2, "each of the two others once"


def test_a_worker_that_leaves_and_one_that_comes_change_nothing_in_the_data(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = served(make_run, workers=2, mode="bounded")
    cluster = LocalCluster(run.model_copy(update={"steps": 60, "evaluate_every": 60}), tmp_path)
    cluster.start_worker("first")

    def change() -> bool:
        if cluster.primary.step >= 10 and "second" not in cluster._leaving:
            cluster.start_worker("second")
        if cluster.primary.step >= 25:
            cluster.stop_worker("first")
        return False

    assert cluster.train(change) == "finished"
    assert audit(tmp_path).ok


def test_it_stops_with_a_checkpoint_and_continues_without_servers(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, workers=2, mode="asynchronous")
    cluster = LocalCluster(run, tmp_path)
    cluster.start_worker("a")
    cluster.start_worker("b")
    assert cluster.train(lambda: cluster.primary.step >= 7) == "stopped"
    stopped = records(tmp_path)[-1]
    assert stopped["event"] == "stopped"
    assert committed(tmp_path / CHECKPOINTS)[-1].name == f"step-{stopped['step']:08d}"
    local(run, tmp_path)
    assert audit(tmp_path).samples_used == run.steps * run.batch_sequences
    assert audit(tmp_path).ok


def test_a_local_run_continues_upon_servers(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    job = run.job.model_copy(update={"sync": Sync()})
    save_run(tmp_path / "moved", run.model_copy(update={"job": job}))
    stops = iter([False] * 5 + [True] * 9)
    assert not train(tmp_path / "moved", lambda: next(stops))
    done(run, tmp_path / "moved", workers=1)
    assert apart(tmp_path / "moved", local(run, tmp_path / "local")) == 0
    assert audit(tmp_path / "moved").ok


def test_users_requests_are_taken_at_a_sync_point(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, workers=1)
    cluster = LocalCluster(run, tmp_path)
    cluster.start_worker("a")
    asked: list[int] = []

    def ask() -> bool:
        if cluster.primary.step >= 3 and not asked:
            asked.append(cluster.primary.step)
            write(tmp_path, drafted(tmp_path, {**AS_PLANNED, "learning_rate": 1e-5, "steps": 9}, by="test"))
        return False

    assert cluster.train(ask) == "finished"
    told = records(tmp_path)
    taken = next(r for r in told if r["event"] == "settings")
    assert taken["changed"] == {"learning_rate": 1e-5, "steps": 9}
    assert told[-1]["step"] == 9
    assert all(r["rate"] <= 1e-5 for r in told if r["event"] == "step" and r["step"] > taken["step"])


def test_a_change_to_another_policy_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    write_to = tmp_path / "run"
    save_run(write_to, run)
    diloco = Sync(policy="diloco").model_dump(mode="json")
    write(write_to, drafted(write_to, {**AS_PLANNED, "sync": diloco}, by="test"))
    told = done(run, write_to, workers=1)
    refused = next(r for r in told if r["event"] == "settings")
    assert "fixed when a run starts" in refused["refused"]


def test_a_worker_that_freezes_loses_its_task_to_another(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.train.server.primary.LATE_S", 0.5)
    monkeypatch.setattr("windlass.train.server.primary.FIRST_TASK_S", 0.5)
    run = served(make_run, workers=2)
    cluster = LocalCluster(run, tmp_path)
    number = cluster.primary.join()
    cluster._threads.append(_Frozen(cluster.primary, number))
    cluster._threads[-1].start()
    while not cluster._threads[-1].held:
        cluster.primary._release_batches()
        time.sleep(0.01)
    cluster.start_worker("awake")
    assert cluster.train() == "finished"
    assert any("is late" in r.get("message", "") for r in records(tmp_path))
    assert audit(tmp_path).ok


class _Frozen(threading.Thread):
    """Takes a task and does nothing with it."""

    def __init__(self, primary: Any, number: int) -> None:
        super().__init__(daemon=True)
        self._primary, self._number = primary, number
        self.held = False

    def run(self) -> None:
        self._primary.next_task(self._number, None)
        self.held = True
