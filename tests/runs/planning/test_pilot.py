"""Pilots are trained once, are resumed after an interruption, and forecast the loss of the job."""

from __future__ import annotations

import itertools
import json
import math
import pydoc_data.topics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.plan.local.machine import MachineFacts
from windlass.plan.loss import Law, useful_tokens
from windlass.runs import training
from windlass.runs.planning import pilot as pilots
from windlass.runs.planning.pilot import SHARE, run_pilots
from windlass.runs.training import RunFolder, corpus_facts
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.protocol.progress import silent
from windlass.spec.run import LINEAGE
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

LAW = Law(
    floor=1.0,
    size_scale=8.0,
    size_power=0.25,
    data_scale=60.0,
    data_power=0.33,
    sharpness=2.0,
    ceiling=math.log(90),
)


class Trainer:
    """Ends every run at once with the loss that a law says, until it is told to stop."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.stops_before: int | None = None

    def __call__(self, folder: RunFolder, tell: Any) -> bool:
        if len(self.made) == self.stops_before:
            return False
        run = folder.load()
        seen = useful_tokens(run.steps * run.tokens_per_step, corpus_facts(Path(run.corpus)).train_tokens)
        loss = LAW.loss(run.shape.matrix_parameters, seen)
        writer = DirectoryWriter(StoreDir(folder.result))
        writer.write(LINEAGE, json.dumps({"metrics": {"loss": loss}}).encode())
        writer.commit({})
        self.made.append(folder.name)
        return True


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer()
    monkeypatch.setattr(pilots, "train", made)
    # Speeds that every plan finds different, as on a real machine, without the time to measure them.
    speeds = itertools.count(1e10, 1e9)
    machine = MachineFacts(cores=1, memory_bytes=8 << 30, peak_flops=1e10, has_compiler=False)
    monkeypatch.setattr(training, "measure_machine", lambda: replace(machine, peak_flops=next(speeds)))
    return made


def job_on(folder: Path, **train: Any) -> Job:
    text = folder / "topics.txt"
    text.write_text("\n\n".join(list(pydoc_data.topics.topics.values())[:12]), encoding="utf-8")
    tables = {
        "corpus": {"sources": [str(text)], "document": "paragraph", "tokenizer": {"kind": "char"}},
        "model": {"layers": 2, "width": 32, "heads": 2, "context": 32},
        "train": train or {"steps": 4000, "batch_sequences": 8},
    }
    return Job.model_validate(tables)


def ask(job: Job, home: Path, **options: Any) -> dict[str, Any] | None:
    return run_pilots(job, home, silent, lambda _event: None, **options)


def test_pilots_that_follow_a_law_foretell_the_job_itself(trainer: Trainer, tmp_path: Path) -> None:
    forecast = ask(job_on(tmp_path), tmp_path / "home", check=True)
    assert forecast is not None
    assert forecast["figures"]["loss_error"] < 0.03
    assert forecast["figures"]["times_pilot_compute"] == pytest.approx(1 / SHARE, rel=0.05)
    assert [choice["times"] for choice in forecast["choices"]] == [1, 3, 10]


def test_interrupted_questions_continue_where_they_stopped(trainer: Trainer, tmp_path: Path) -> None:
    trainer.stops_before = 3
    assert ask(job_on(tmp_path), tmp_path / "home") is None
    trainer.stops_before = None
    forecast = ask(job_on(tmp_path), tmp_path / "home")
    assert forecast is not None
    assert len(trainer.made) == len(set(trainer.made)) == len(forecast["pilots"])


def test_a_job_with_a_time_is_answered_as_it_was_planned_first(trainer: Trainer, tmp_path: Path) -> None:
    """How many steps fit into a time is measured anew by every plan; pilots must not be made anew for it."""
    first = ask(job_on(tmp_path, time=60.0), tmp_path / "home")
    again = ask(job_on(tmp_path, time=60.0), tmp_path / "home")
    assert first == again
    assert len(trainer.made) == len(set(trainer.made))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(share: float, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--pilot-share"):
        ask(job_on(tmp_path), tmp_path / "home", share=share)


def test_a_model_that_continues_from_another_has_no_pilots(tmp_path: Path) -> None:
    job = job_on(tmp_path).model_copy(update={"model": Job().model.model_copy(update={"start_from": "base"})})
    with pytest.raises(BadInput, match="start_from"):
        ask(job, tmp_path / "home")
