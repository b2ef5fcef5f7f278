"""How runs are found, and how they stand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.runs.run_status import effective_values, find_run, saved_cut, state_of
from windlass.runs.training import RunFolder
from windlass.spec.errors import NotFound
from windlass.store.lock import locked
from windlass.store.store_dir import StoreDir

Start = Callable[..., RunFolder]
Tell = Callable[..., None]
Finish = Callable[[RunFolder], None]


def test_a_name_alone_means_the_newest_run(start: Start, tmp_path: Path) -> None:
    start(1), start(2), start(10)
    assert find_run(tmp_path, "poems").name == "poems/10"
    assert find_run(tmp_path, "poems/2").name == "poems/2"


def test_an_unknown_run_is_answered_with_those_that_there_are(start: Start, tmp_path: Path) -> None:
    start(1)
    with pytest.raises(NotFound, match="did you mean 'poems'"):
        find_run(tmp_path, "poem")
    with pytest.raises(NotFound, match="there are: poems/1"):
        find_run(tmp_path, "poems/7")


def test_a_run_is_new_then_running_then_stopped_then_finished(
    start: Start, tell: Tell, finish: Finish
) -> None:
    folder = start()
    assert state_of(folder).stage == "new"
    with locked(folder.path / ".lock", "the run"):
        assert state_of(folder).stage == "running"
    tell(folder, event="step", step=10, loss=3.0, tokens_per_s=100.0)
    assert state_of(folder).stage == "stopped"
    finish(folder)
    assert state_of(folder).stage == "finished"


def test_the_newest_step_counts(start: Start, tell: Tell) -> None:
    folder = start()
    for step in (10, 20, 10):
        tell(folder, event="step", step=step, loss=1.0 / step, tokens_per_s=100.0)
    assert state_of(folder).last["step"] == 10, "the run was set back to a checkpoint"


def test_effective_values_are_those_of_the_run(start: Start) -> None:
    run = start(layout={"dp": 2, "shares": [3, 1]}).load()
    values = effective_values(run, run.job.sync)
    assert values["workers"] == 2
    assert values["replica_sequences"] == [6, 2]
    assert values["sync"]["policy"] == "every-step"


def test_the_cut_is_that_of_the_newest_checkpoint(start: Start) -> None:
    folder = start()
    assert saved_cut(folder) is None
    for step, how in ((10, "old"), (20, "new")):
        content = {"layout": {}, "cut": {"pieces": [], "features": {}, "how": how}}
        StoreDir(folder.path / "checkpoints" / f"step-{step:08d}").write(
            "layout.json", json.dumps(content).encode()
        )
    cut = saved_cut(folder)
    assert cut is not None
    assert cut.how == "new"


def test_an_elastic_run_stands_under_the_layout_of_its_members(start: Start, tell: Tell) -> None:
    folder = start()
    assert not state_of(folder).elastic
    (folder.path / "coordinator").mkdir()
    layout = {"dp": 4}
    tell(folder, event="generation", generation=2, epoch=1, members=[], layout=layout, reason="grown")
    standing = state_of(folder)
    assert standing.elastic
    assert standing.run.layout.dp == 4
    assert effective_values(standing.run, standing.sync)["replica_sequences"] == [2, 2, 2, 2]
