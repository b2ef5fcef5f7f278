"""The checkpoints of a run from memory to a store: told, kept, sent, and found again."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from windlass.parallel.param_shard import holdings_of
from windlass.parallel.process_group import SingleProcess
from windlass.spec.errors import StoreFailed
from windlass.spec.job import Job
from windlass.spec.layout import Layout, Partition
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import State, committed
from windlass.train.checkpoint.checkpointer import Checkpointer, settle_store

CUT = Partition(pieces=(), features={}, how="by hand")
MINUTE = 60.0


class Told:
    """Events in the order they were told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._said = threading.Condition()

    def __call__(self, event: str, *, durable: bool = False, **facts: Any) -> None:
        with self._said:
            self.events.append({"event": event, **facts})
            self._said.notify_all()

    def wait(self, count: int, **facts: Any) -> list[dict[str, Any]]:
        """Wait for so many events with these facts."""
        with self._said:
            assert self._said.wait_for(lambda: len(self.of(**facts)) >= count, MINUTE), self.events
            return self.of(**facts)

    def of(self, **facts: Any) -> list[dict[str, Any]]:
        return [e for e in self.events if facts.items() <= e.items()]


class Learner:
    """A model that is saved between steps, as a trainer does it."""

    def __init__(self, folder: Path, told: Told, **checkpoint: Any) -> None:
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        job = Job.model_validate({"name": "learner", "checkpoint": checkpoint})
        self.checkpoints = Checkpointer(folder, job, told)
        self.step_number = 0

    def step(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()
        self.checkpoints.finish_copy()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1

    def save(self) -> None:
        self.begin()
        assert self.checkpoints.saving
        self.step()
        self.checkpoints.poll()

    def begin(self, *, wait: bool = False) -> Path:
        state = State(self.step_number, self.step_number * 2, 1.0)
        holdings, group = holdings_of(self.model), SingleProcess()
        return self.checkpoints.save(
            state, holdings, self.optimizer, group=group, layout=Layout(), cut=CUT, wait=wait
        )

    def restore(self) -> State | None:
        state, _, self.skipped = self.checkpoints.load(
            holdings_of(self.model), self.optimizer, group=SingleProcess()
        )
        return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "learner" / "1").mkdir(parents=True)
    return tmp_path / "runs" / "learner" / "1"


def test_a_save_is_committed_while_steps_continue(folder: Path) -> None:
    told = Told()
    learner = Learner(folder, told)
    before = learner.model.weight.detach().clone()
    learner.save()
    told.wait(1, event="checkpoint", step=0, tier="local")
    assert learner.restore() == State(0, 0, 1.0)
    assert torch.equal(learner.model.weight, before)


def test_the_next_save_finishes_the_one_before(folder: Path) -> None:
    told = Told()
    learner = Learner(folder, told, keep=3)
    for _ in range(3):
        learner.begin()
        learner.step()
    assert learner.checkpoints.saving
    path = learner.begin(wait=True)
    assert path.name == "step-00000003"
    assert not learner.checkpoints.saving
    assert [e["step"] for e in told.wait(4, event="checkpoint")] == [0, 1, 2, 3]
    assert len(committed(folder / "checkpoints")) == 3


def test_copies_reach_the_store_and_both_tiers_keep_their_own_number(folder: Path, tmp_path: Path) -> None:
    told = Told()
    learner = Learner(folder, told, store=str(tmp_path / "store"), keep=1, store_keep=2, keep_every=3)
    for count in range(1, 7):
        learner.save()
        told.wait(count, event="checkpoint", tier="store")
    learner.checkpoints.close(MINUTE)
    assert [path.name for path in committed(folder / "checkpoints")] == ["step-00000005"]
    mirror = Mirror(StoreDir(json.loads((folder / "store.json").read_bytes())["url"]))
    assert mirror.names() == [f"step-0000000{n}" for n in (0, 3, 4, 5)]
    assert mirror.place.url.startswith(str(tmp_path / "store" / "learner" / "1-"))


def test_a_run_whose_disk_was_lost_continues_from_the_store(folder: Path, tmp_path: Path) -> None:
    told = Told()
    learner = Learner(folder, told, store=str(tmp_path / "store"))
    learner.save()
    told.wait(1, tier="store")
    shutil.rmtree(folder / "checkpoints")
    assert learner.restore() == State(0, 0, 1.0)
    assert learner.skipped == []


def test_a_store_that_does_not_work_is_reported_and_the_run_continues(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a directory should be")
    told = Told()
    learner = Learner(folder, told, store=str(tmp_path / "store"))
    learner.save()
    failed = told.wait(1, event="checkpoint_failed", tier="store")
    assert "store" in failed[0]["message"]
    learner.save()
    told.wait(2, event="checkpoint", tier="local")
    learner.checkpoints.close(0.0)
    assert "not uploaded" in told.wait(1, event="warning")[0]["message"]
    assert learner.restore() == State(1, 2, 1.0)


def test_a_disk_that_does_not_work_is_reported_and_the_run_continues(folder: Path) -> None:
    told = Told()
    learner = Learner(folder, told)
    (folder / "checkpoints").write_text("a file where a directory should be")
    learner.begin()
    learner.step()
    learner.checkpoints.poll()
    told.wait(1, event="checkpoint_failed", tier="local", step=0)
    with pytest.raises(StoreFailed):
        learner.begin(wait=True)
    (folder / "checkpoints").unlink()
    learner.save()
    told.wait(1, event="checkpoint")


def test_what_is_given_up_is_not_a_checkpoint(folder: Path) -> None:
    learner = Learner(folder, Told())
    learner.begin()
    learner.checkpoints.give_up()
    assert not learner.checkpoints.saving
    assert learner.restore() is None


def test_by_the_clock_a_save_is_due_only_when_requested(folder: Path) -> None:
    assert not Learner(folder, Told()).checkpoints.due()
    assert not Learner(folder, Told(), seconds="1h").checkpoints.due()
    assert Learner(folder, Told(), seconds=1e-9).checkpoints.due()


def test_runs_of_the_same_name_have_places_of_their_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "job" / "1", tmp_path / "other" / "job" / "1"
    urls = {settle_store(path, "memory://store") for path in (one, one, other)}
    assert len(urls) == 2
    assert settle_store(one, "memory://elsewhere").startswith("memory://elsewhere/job/1-")
