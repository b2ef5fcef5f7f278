"""Hidden Markov models on servers and workers that are threads."""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.train.conftest import MACHINE, tiny_job
from windlass.models.hmm.weights import HmmWeights
from windlass.plan.count_models import plan_statistic
from windlass.runs.training import corpus_facts
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.protocol.elastic import WORKERS
from windlass.spec.run import CHECKPOINTS, JOURNAL, Run
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.hmm import expectation
from windlass.train.hmm.checkpoints import load_checkpoint
from windlass.train.hmm.run import train
from windlass.train.loop import save_run
from windlass.train.server.hmm.hmm_worker import HmmTaskRunner

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


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be several blocks for everybody."""
    monkeypatch.setattr(expectation, "MAX_SEQUENCES", 32)


@pytest.fixture
def make(corpus_path: Path) -> MakeRun:
    def run(workers: int = 1, steps: int = 4, **sync: Any) -> Run:
        job = tiny_job(Path("unused.txt")).model_dump(mode="json")
        job["model"] = {"family": "hmm", "context": 32, "hmm": {"states": 5, "min_gain": 0}}
        job["train"] = {"steps": steps, "evaluate_every": 3, "checkpoint_every": 2}
        job |= {"layout": {"dp": workers}, "sync": {"policy": "server", "servers": 2, **sync}}
        return plan_statistic(Job.model_validate(job), corpus_facts(corpus_path), MACHINE)

    return run


def local(run: Run, folder: Path) -> Path:
    job = run.job.model_copy(update={"sync": Sync(), "layout": Layout()})
    save_run(folder, run.model_copy(update={"job": job, "layout": Layout()}))
    assert train(folder, lambda: False)
    return folder


def on_servers(run: Run, folder: Path, workers: int, stopped: Callable[[Any], bool] = lambda _: False) -> str:
    cluster = LocalCluster(run, folder)
    for number in range(workers):
        cluster.start_worker(f"worker {number}")
    return str(cluster.train(lambda: stopped(cluster.primary)))


def weights(folder: Path) -> HmmWeights:
    return load_checkpoint(committed(folder / CHECKPOINTS)[-1])[0]


def steps(folder: Path, key: str = "loss") -> list[float]:
    return [r[key] for r in Journal(StoreDir(folder), JOURNAL).read() if r["event"] == "step"]


def assert_same(one: Path, other: Path) -> None:
    for name, table in weights(one).tables.items():
        np.testing.assert_array_equal(table, weights(other).tables[name], err_msg=name)
    assert (one / "model" / "model.safetensors").read_bytes() == (
        other / "model" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("workers", [1, 3])
def test_synchronous_workers_end_with_the_bits_of_the_local_run(
    make: MakeRun, tmp_path: Path, workers: int
) -> None:
    run = make(workers)
    assert on_servers(run, tmp_path / "served", workers) == "finished"
    assert_same(tmp_path / "served", local(run, tmp_path / "local"))
    assert steps(tmp_path / "served") == steps(tmp_path / "local")
    assert steps(tmp_path / "served", "gain") == steps(tmp_path / "local", "gain")


def test_stopped_and_resumed_it_ends_with_the_same_bits(make: MakeRun, tmp_path: Path) -> None:
    run = make(2)
    assert on_servers(run, tmp_path / "served", 2, lambda primary: primary.step >= 3) == "stopped"
    assert on_servers(run, tmp_path / "served", 1) == "finished"
    assert_same(tmp_path / "served", local(run, tmp_path / "local"))


def test_one_part_after_the_other_climbs_faster_and_never_falls(make: MakeRun, tmp_path: Path) -> None:
    run = make(1, steps=6, mode="asynchronous")
    assert on_servers(run, tmp_path / "served", 1) == "finished"
    local(run, tmp_path / "local")
    ours, theirs = steps(tmp_path / "served"), steps(tmp_path / "local")
    assert ours[0] == theirs[0], "the first time all parts are counted before anything changes"
    assert all(after <= before for before, after in pairwise(ours))
    assert ours[-1] < theirs[-1]


def test_several_without_waiting_count_every_block_once_an_iteration(make: MakeRun, tmp_path: Path) -> None:
    run = make(3, mode="bounded", staleness=1)
    assert on_servers(run, tmp_path / "served", 3) == "finished"
    finished = json.loads((tmp_path / "served" / JOURNAL).read_text().splitlines()[-1])
    assert finished["updates"] == sum(finished["staleness"].values()) == run.steps * 12
    local(run, tmp_path / "local")
    assert steps(tmp_path / "served")[-1] < steps(tmp_path / "local")[-1] * 1.01


def test_an_iteration_ends_where_the_next_one_has_begun_too(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part of the second iteration is held back until another worker is well into the third."""
    run = make(2, steps=5, mode="asynchronous")
    run = run.model_copy(update={"evaluate_every": 5, "checkpoint_every": 5})
    cluster, do = LocalCluster(run, tmp_path / "served"), HmmTaskRunner.do
    held_back = list[int]()

    def slowly(runner: HmmTaskRunner, order: dict[str, Any], connections: Any) -> dict[str, Any]:
        facts = do(runner, order, connections)
        if (order["batch"], order["part"]) == (1, 7):
            until_s = time.monotonic() + 60
            while cluster.primary.samples < 64 and time.monotonic() < until_s:
                time.sleep(0.002)
            held_back.append(cluster.primary.samples)
        return facts

    monkeypatch.setattr(HmmTaskRunner, "do", slowly)
    for name in ("one", "other"):
        cluster.start_worker(name)
    assert cluster.train() == "finished"
    assert held_back[0] >= 64, "60 blocks are two iterations, 4 of them lacked"
    journal = [json.loads(line) for line in (tmp_path / "served" / JOURNAL).read_text().splitlines()]
    assert [r["step"] for r in journal if r["event"] == "step"] == [1, 2, 3, 4, 5]
    assert journal[-1]["updates"] == run.steps * 8
    losses = steps(tmp_path / "served")
    assert all(after < before for before, after in pairwise(losses))


def test_no_part_is_counted_again_before_all_were_counted_once(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, do = make(2, steps=2, mode="asynchronous"), HmmTaskRunner.do
    asked = list[tuple[int, int]]()

    def slowly(runner: HmmTaskRunner, order: dict[str, Any], connections: Any) -> dict[str, Any]:
        asked.append((order["batch"], order["part"]))
        time.sleep(0.2 if order["part"] == 7 else 0)
        return do(runner, order, connections)

    monkeypatch.setattr(HmmTaskRunner, "do", slowly)
    assert on_servers(run, tmp_path / "served", 2) == "finished"
    local(run, tmp_path / "local")
    assert [batch for batch, _ in asked] == [0] * 8 + [1] * 8
    assert steps(tmp_path / "served")[0] == steps(tmp_path / "local")[0], "of the whole text"


def test_another_number_of_workers_divides_the_text_anew_at_a_sync_point(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, do = make(2, steps=6, mode="asynchronous"), HmmTaskRunner.do
    run = run.model_copy(update={"evaluate_every": 6, "checkpoint_every": 6})
    folder, asked = tmp_path / "served", list[tuple[int, int]]()

    def watched(runner: HmmTaskRunner, order: dict[str, Any], connections: Any) -> dict[str, Any]:
        asked.append((order["batch"], order["parts"]))
        if order["batch"] == 2 and order["parts"] == 8:
            (folder / WORKERS).parent.mkdir(exist_ok=True)
            (folder / WORKERS).write_text('{"workers": 1}')
        return do(runner, order, connections)

    monkeypatch.setattr(HmmTaskRunner, "do", watched)
    assert on_servers(run, folder, 2) == "finished"
    divided = dict(asked)
    assert (divided[0], divided[5]) == (8, 4)
    assert all(asked.count((batch, parts)) == parts for batch, parts in divided.items()), "never in two ways"
    assert len(steps(folder)) == 6
    assert all(after < before for before, after in pairwise(steps(folder)))


def test_with_less_than_two_blocks_for_each_worker_an_iteration_is_ended_first(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "MAX_SEQUENCES", 1024)
    run = make(2, mode="asynchronous")
    assert on_servers(run, tmp_path / "served", 2) == "finished"
    assert_same(tmp_path / "served", local(run, tmp_path / "local"))


def test_counts_of_every_part_outlive_a_stop(make: MakeRun, tmp_path: Path) -> None:
    run = make(1, steps=5, mode="asynchronous")
    assert on_servers(run, tmp_path / "whole", 1) == "finished"
    assert on_servers(run, tmp_path / "broken", 1, lambda primary: primary.step >= 3) == "stopped"
    assert on_servers(run, tmp_path / "broken", 1) == "finished"
    assert_same(tmp_path / "broken", tmp_path / "whole")
