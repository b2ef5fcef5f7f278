"""Training runs: prepared, started, followed, resumed.

    runs/NAME/1/, runs/NAME/2/ ...   each as spec.run describes

Starting a job makes a new run; resuming goes on with the newest unfinished one. No run writes over
another, so nothing is ever lost by starting again.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from windlass.cluster.on_local import LocalProcess
from windlass.corpus.build import build_corpus
from windlass.corpus.built import load_corpus
from windlass.operate.registry import resolve_model
from windlass.plan.machine import measure_machine
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.config import shape_from_config
from windlass.spec.door import INTERRUPTED
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.job import Corpus, Job, Tokenizer
from windlass.spec.progress import Report
from windlass.spec.run import CHECKPOINTS, RESULT, RUN_FILE, Run
from windlass.spec.shape import Shape
from windlass.store.lock import locked
from windlass.store.manifest import load_manifest
from windlass.store.place import Place

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def result(self) -> Path:
        return self.path / RESULT

    @property
    def finished(self) -> bool:
        return load_manifest(Place(self.result)) is not None

    @property
    def step(self) -> int:
        """The newest checkpoint's step, 0 where there is none."""
        found = sorted(self.path.glob(f"{CHECKPOINTS}/step-*/manifest.json"))
        return int(found[-1].parent.name.removeprefix("step-")) if found else 0

    @property
    def result_digest(self) -> str:
        """Names the content of the finished model; "" while there is none."""
        manifest = load_manifest(Place(self.result))
        return manifest.digest if manifest else ""

    def load(self) -> Run:
        return Run.model_validate_json((self.path / RUN_FILE).read_bytes())


def runs_of(home: Path, name: str) -> list[RunFolder]:
    """List the runs of a job, oldest first."""
    folder = home / "runs" / name
    numbers = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.exists() else []
    found = [RunFolder(folder / str(number)) for number in numbers]
    return [run for run in found if (run.path / RUN_FILE).exists()]


def prepare(job: Job, home: Path, report: Report) -> RunFolder:
    """Build the corpus if need be, plan, and write a new run."""
    run = plan_job(job, home, report)
    folder = home / "runs" / job.name
    with locked(folder / ".lock", f"the list of runs of {job.name}"):
        numbers = [int(p.name) for p in folder.iterdir() if p.name.isdigit()]
        target = folder / str(max(numbers, default=0) + 1)
        Place(target).write(RUN_FILE, run.model_dump_json(indent=1).encode())
    return RunFolder(target)


def plan_job(job: Job, home: Path, report: Report) -> Run:
    """Make every choice that the job leaves open."""
    shape: Shape | None = None
    start_from: Path | None = None
    if job.model.start_from is not None:
        _, start_from, _ = resolve_model(home, job.model.start_from)
        config = start_from / "config.json"
        shape = shape_from_config(json.loads(config.read_text()), str(config))
    path = build_corpus(_corpus_for(job, start_from), home, report)
    return plan_run(
        job,
        corpus_facts(path),
        measure_machine(),
        start_shape=shape,
        start_from=str(start_from) if start_from else None,
    )


def corpus_facts(path: Path) -> CorpusFacts:
    corpus = load_corpus(path)
    return CorpusFacts(
        path=str(path),
        digest=corpus.digest,
        vocabulary=corpus.tokenizer.vocabulary,
        train_tokens=corpus.train.tokens,
        validation_tokens=corpus.validation.tokens,
    )


def newest_of(job: Job, home: Path) -> RunFolder | None:
    """Return the newest run of exactly this job, finished or not."""
    return next((run for run in reversed(runs_of(home, job.name)) if run.load().job == job), None)


def resumable(job: Job, home: Path) -> RunFolder | None:
    """Return the newest run of exactly this job that is unfinished."""
    same = (run for run in reversed(runs_of(home, job.name)) if run.load().job == job)
    return next((run for run in same if not run.finished), None)


def find_resumable(job: Job, home: Path) -> RunFolder:
    """Return the run to go on with, or say why there is none."""
    found = resumable(job, home)
    if found is not None:
        return found
    runs = runs_of(home, job.name)
    if not runs:
        raise NotFound(f"job '{job.name}' has no run to resume", hint="leave out --resume to start one")
    newest = runs[-1]
    if newest.finished:
        raise BadInput(f"run {newest.name} has finished", hint="leave out --resume to start another")
    changed = _changed(newest.load().job.model_dump(), job.model_dump())
    raise BadInput(
        f"run {newest.name} was started with other settings: {', '.join(changed)}",
        hint="put them back to go on with it, or leave out --resume to start another",
    )


def train(folder: RunFolder, tell: Tell) -> bool:
    """Do the run in a process of its own and follow it. Return False when it was interrupted."""
    with (
        locked(folder.path / ".lock", f"run {folder.name}"),
        LocalProcess(
            "training", "windlass.train", ["run", str(folder.path)], folder.path / "process.log"
        ) as process,
        _interrupts(process),
    ):
        for event in process.events():
            tell(event)
        return process.check(frozenset((0, INTERRUPTED))) == 0


@contextmanager
def _interrupts(process: LocalProcess) -> Iterator[None]:
    """Pass the first Ctrl-C on as a request to stop after the current step; the second one kills."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        process.interrupt()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _corpus_for(job: Job, start_from: Path | None) -> Corpus:
    """Text for a model that exists is cut up by that model's own tokenizer."""
    if start_from is None or job.corpus.tokenizer.kind == "file":
        return job.corpus
    file = start_from / "tokenizer.json"
    if not file.exists():
        raise BadInput(f"{start_from}: has no tokenizer.json", hint="name one in [corpus.tokenizer] path")
    return job.corpus.model_copy(update={"tokenizer": Tokenizer(kind="file", path=str(file))})


def _changed(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    changed: list[str] = []
    for key in old:
        if isinstance(old[key], dict) and isinstance(new.get(key), dict):
            changed += _changed(old[key], new[key], f"{path}{key}.")
        elif old[key] != new.get(key):
            changed.append(f"{path}{key}")
    return changed
