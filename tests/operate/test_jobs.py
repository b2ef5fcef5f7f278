"""How runs are found, how they stand, and what may be changed while one goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.operate.jobs import ask_for, effective_values, find_run, saved_cut, standing_of
from windlass.operate.runs import RunFolder
from windlass.plan.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import BadInput, BadJob, NotFound
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.spec.settings import SETTINGS, Settings
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.lock import locked
from windlass.store.manifest import DirectoryWriter
from windlass.store.place import Place

Start = Callable[..., RunFolder]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Plan a run and write it down as `windlass train` does."""

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
        Place(path).write(RUN_FILE, run.model_dump_json().encode())
        return RunFolder(path)

    return begin


def tell(folder: RunFolder, **record: Any) -> None:
    Journal(Place(folder.path), JOURNAL).append(record)


def finish(folder: RunFolder) -> None:
    DirectoryWriter(Place(folder.result)).commit({})


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


def test_a_run_is_new_then_running_then_stopped_then_finished(start: Start) -> None:
    folder = start()
    assert standing_of(folder).stage == "new"
    with locked(folder.path / ".lock", "the run"):
        assert standing_of(folder).stage == "running"
    tell(folder, event="step", step=10, loss=3.0, tokens_per_s=100.0)
    assert standing_of(folder).stage == "stopped"
    finish(folder)
    assert standing_of(folder).stage == "finished"


def test_the_newest_step_counts(start: Start) -> None:
    folder = start()
    for step in (10, 20, 10):
        tell(folder, event="step", step=step, loss=1.0 / step, tokens_per_s=100.0)
    assert standing_of(folder).last["step"] == 10, "the run was set back to a checkpoint"


def test_effective_values_are_those_of_the_run(start: Start) -> None:
    run = start(layout={"dp": 2, "shares": [3, 1]}).load()
    values = effective_values(run, run.job.sync)
    assert values["workers"] == 2
    assert values["replica_sequences"] == [6, 2]
    assert values["sync"]["policy"] == "every-step"


def test_a_change_is_written_whole_for_the_trainer(start: Start) -> None:
    folder = start()
    ask_for(folder, ["sync.policy=diloco", "sync.every=20"])
    written = Settings.model_validate_json((folder.path / SETTINGS).read_bytes())
    assert written == Settings(id=1, sync=Sync(policy="diloco", every=20))
    assert set(json.loads((folder.path / SETTINGS).read_text())["sync"]) == set(Sync.model_fields)


def test_changes_build_upon_each_other(start: Start) -> None:
    folder = start()
    ask_for(folder, ["sync.policy=diloco"])
    assert ask_for(folder, ["sync.every=20"]) == Settings(id=2, sync=Sync(policy="diloco", every=20))


def test_a_change_waits_until_the_trainer_takes_it(start: Start) -> None:
    folder = start()
    asked = ask_for(folder, ["sync.policy=local"])
    assert standing_of(folder).asked == asked
    assert standing_of(folder).sync.policy == "every-step"
    tell(folder, event="settings", step=5, id=asked.id, sync=asked.sync.model_dump())
    assert standing_of(folder).asked is None
    assert standing_of(folder).sync.policy == "local"


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("train.learning_rate=1", "'train.learning_rate' cannot be changed in a run"),
        ("layout.dp=4", "--resume --layout"),
        ("snyc.policy=local", "did you mean 'sync'"),
        ("policy=local", "write it as sync.KEY=VALUE"),
        ("sync.policy", "write it as sync.KEY=VALUE"),
    ],
)
def test_what_a_run_cannot_change_is_refused(start: Start, assignment: str, reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        ask_for(start(), [assignment])
    assert reason in str(refused.value)


def test_a_wrong_value_is_refused_and_nothing_is_written(start: Start) -> None:
    folder = start()
    with pytest.raises(BadJob, match="'dilco' is not one of its values; did you mean 'diloco'"):
        ask_for(folder, ["sync.policy=dilco"])
    assert not (folder.path / SETTINGS).exists()


def test_a_policy_that_contradicts_the_rest_of_the_job_is_refused(start: Start) -> None:
    folder = start(layout={"dp": 2, "shares": [3, 1]})
    with pytest.raises(BadJob, match="shares go with"):
        ask_for(folder, ["sync.policy=local"])


def test_a_finished_run_takes_no_change(start: Start) -> None:
    folder = start()
    finish(folder)
    with pytest.raises(BadInput, match="run poems/1 has finished"):
        ask_for(folder, ["sync.policy=local"])


def test_a_run_without_replicas_takes_no_change(start: Start) -> None:
    with pytest.raises(BadInput, match="has no replicas to synchronise: its layout is one process"):
        ask_for(start(layout={}), ["sync.policy=local"])


def test_the_cut_is_that_of_the_newest_checkpoint(start: Start) -> None:
    folder = start()
    assert saved_cut(folder) is None
    for step, how in ((10, "old"), (20, "new")):
        told = {"layout": {}, "cut": {"pieces": [], "features": {}, "how": how}}
        Place(folder.path / "checkpoints" / f"step-{step:08d}").write(
            "layout.json", json.dumps(told).encode()
        )
    cut = saved_cut(folder)
    assert cut is not None
    assert cut.how == "new"
