"""Whole runs on parameter servers, in real processes that are killed for real."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from windlass.lab.proofs.servers.servers_proof import updates_lost
from windlass.runs.audit import audit
from windlass.runs.elastic_run import write_workers_request
from windlass.runs.server_run import ServerRun
from windlass.runs.training import RunFolder
from windlass.spec.run import CHECKPOINTS, JOURNAL, Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.loop import save_run, train

pytestmark = pytest.mark.slow
MakeRun = Callable[..., Run]
Told = list[dict[str, Any]]


def served(make_run: MakeRun, *, workers: int = 1, family: str = "llama", **sync: Any) -> Run:
    return make_run(
        train={"steps": 40, "checkpoint_every": 15, "evaluate_every": 40},
        model={"family": family},
        layout={"dp": workers},
        sync={"policy": "server", "servers": 2, **sync},
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    source = CheckpointReader(committed(folder / CHECKPOINTS)[-1])
    kinds = (None, "first", "second")
    return {f"{name} {kind}": source.read(name, kind=kind) for name in source.names() for kind in kinds}


def same(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def local(run: Run, folder: Path) -> Path:
    """Do the same without servers, in this process."""
    without = run.job.model_copy(update={"sync": type(run.job.sync)()})
    save_run(folder, run.model_copy(update={"job": without}))
    assert train(folder, lambda: False)
    return folder


def on_servers(
    run: Run, folder: Path, act: Callable[[ServerRun, int], None] = lambda *_: None, paced_by: str = "step"
) -> bool:
    """Do a run on servers; `act` hears of every step, or pass over the text, with whoever is there."""
    save_run(folder, run)
    write_workers_request(folder, run.layout.dp, "test")

    def tell(event: dict[str, Any]) -> None:
        if event.get("event") == paced_by:
            act(server_run, int(event["step" if paced_by == "step" else "epoch"]))

    server_run = ServerRun(RunFolder(folder), tell)
    return server_run.run()


def records(folder: Path) -> Told:
    return list(Journal(StoreDir(folder), JOURNAL).read())


def strikes(**plan: int) -> Callable[[ServerRun, int], None]:
    """Kill each once, after its step: strikes(worker_0=5, server_1=10)."""
    left = {name.replace("_", " "): step for name, step in plan.items()}

    def act(server_run: ServerRun, step: int) -> None:
        for name in [name for name, after in left.items() if step >= after]:
            del left[name]
            os.kill(server_run.pids[name], signal.SIGKILL)

    return act


def test_one_worker_ends_with_the_bits_of_the_local_run_whichever_process_was_killed(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = served(make_run)
    assert on_servers(run, tmp_path / "served", strikes(worker_0=6, server_1=12, server_0=20))
    assert same(tmp_path / "served", local(run, tmp_path / "local"))
    told = records(tmp_path / "served")
    assert sorted(r["who"] for r in told if r["event"] == "replaced") == ["server 0", "server 1", "worker 0"]
    assert updates_lost(told) == 0
    assert audit(tmp_path / "served").ok
    ours, theirs = ((tmp_path / name / "model" / "model.safetensors") for name in ("served", "local"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_stage_of_vectors_survives_who_learns_and_who_serves_and_leads_to_the_same_network(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(
        train={"steps": 4, "checkpoint_every": 4, "evaluate_every": 4},
        model={"family": "mlp", "heads": None, "mlp": {"window": 4, "word2vec_epochs": 12}},
        sync={"policy": "server", "servers": 2},
    )
    act = strikes(worker_0=2, server_1=4, server_0=6)
    assert on_servers(run, tmp_path / "served", act, paced_by="vectors")
    told = records(tmp_path / "served")
    assert sorted(r["who"] for r in told if r["event"] == "replaced") == ["server 0", "server 1", "worker 0"]
    assert [r["epoch"] for r in told if r["event"] == "vectors"] == list(range(1, 13))
    assert same(tmp_path / "served", local(run, tmp_path / "local"))


def test_without_a_log_a_killed_server_costs_no_more_than_the_updates_since_a_checkpoint(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = served(make_run, workers=2, mode="bounded", staleness=1, log=False)
    assert on_servers(run, tmp_path, strikes(worker_1=4, server_1=20))
    told = records(tmp_path)
    assert 0 < updates_lost(told) <= run.checkpoint_every
    assert [r["step"] for r in told if r["event"] == "went_back"] == [15]
    assert audit(tmp_path).ok
