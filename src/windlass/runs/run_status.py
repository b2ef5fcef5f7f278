"""Lists runs and reads their state. `run_settings` changes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windlass.plan.hyperparameters import choose_micro, micro_batches_of
from windlass.runs.clock_skew import mended
from windlass.runs.elastic_run import address_towards_leader, write_workers_request
from windlass.runs.training import RunFolder, runs_of
from windlass.spec.errors import BadInput, InUse, NotFound, did_you_mean
from windlass.spec.layout import Layout, Partition
from windlass.spec.protocol.elastic import COORDINATOR
from windlass.spec.run import CHECKPOINTS, JOURNAL, Run
from windlass.spec.settings import Settings, applied, folded
from windlass.spec.shape import HmmShape, NgramShape
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.lock import held
from windlass.store.settings_file import newest as newest_request
from windlass.store.store_dir import StoreDir

Stage = Literal["new", "running", "paused", "stopped", "finished"]


@dataclass(frozen=True)
class RunState:
    """The state of a run, from its plan, its journal and its settings requests."""

    folder: RunFolder
    planned: Run
    stage: Stage
    values: dict[str, Any]
    """Settings in force (spec.settings); None means "as planned"."""
    taken: int = 0
    """Id of the newest request that was applied."""
    requested: Settings | None = None
    """A request that was not applied yet."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest record of a step."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    """The journal's records of changes, each once."""
    generations: tuple[dict[str, Any], ...] = ()
    """The journal's generation records of an elastic run: members, layout, reason."""

    @property
    def run(self) -> Run:
        """The run with the settings in force."""
        return applied(self.planned, Settings(id=1, by="", time=0.0, **self.values))

    @property
    def sync(self) -> Sync:
        """The policy in force."""
        return self.run.job.sync

    @property
    def wanted(self) -> dict[str, Any]:
        """The settings in force once all requests are applied."""
        return dict(self.values if self.requested is None else self.requested.values)

    @property
    def step(self) -> int:
        return int(self.last.get("step", 0))

    @property
    def running(self) -> bool:
        """Whether processes work on it, or wait in a pause."""
        return self.stage in ("running", "paused")

    @property
    def elastic(self) -> bool:
        return (self.folder.path / COORDINATOR).is_dir()


def all_runs(home: Path) -> list[RunFolder]:
    """List every run of every job, oldest first within a job."""
    folder = home / "runs"
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.exists() else []
    return [run for name in names for run in runs_of(home, name)]


def find_run(home: Path, reference: str) -> RunFolder:
    """Return the run called NAME/NUMBER, or the newest one of NAME."""
    name, _, number = reference.partition("/")
    runs = runs_of(home, name)
    if not runs:
        known = sorted({run.path.parent.name for run in all_runs(home)})
        hint = did_you_mean(name, known) if known else "nothing was trained yet; `windlass train` does it"
        raise NotFound(f"no run of '{name}' in {home}", hint=hint)
    if not number:
        return runs[-1]
    found = next((run for run in runs if run.path.name == number), None)
    if found is None:
        raise NotFound(f"'{name}' has no run {number}", hint=f"there are: {', '.join(r.name for r in runs)}")
    return found


def journal_of(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Read the journal of a run, oldest record first."""
    return Journal(StoreDir(folder.path), JOURNAL).read()


def state_of(folder: RunFolder) -> RunState:
    """Read the state of a run."""
    records = mended(journal_of(folder))
    newest = {str(record.get("event")): record for record in records}
    generations = tuple(record for record in records if record.get("event") == "generation")
    taken, values = folded(records)
    requested = newest_request(folder.path)
    stage = _stage(folder, started="step" in newest)
    return RunState(
        folder=folder,
        planned=_laid(folder.load(), generations),
        stage="paused" if stage == "running" and values["paused"] else stage,
        values=values,
        taken=taken,
        requested=requested if requested is not None and requested.id > taken else None,
        last=newest.get("step", {}),
        evaluation=newest.get("evaluation", {}),
        history=tuple({r["id"]: r for r in reversed(records) if r.get("event") == "settings"}.values())[::-1],
        generations=generations,
    )


def _laid(run: Run, generations: Sequence[dict[str, Any]]) -> Run:
    """Return the run with its current layout, which an elastic run changes by itself."""
    layout = generations[-1]["layout"] if generations else None
    if not isinstance(layout, dict):
        return run
    now = Layout.model_validate(layout)
    micro = choose_micro(run.job.train, now, run.batch_sequences, run.micro_batch_sequences)
    return run.model_copy(update={"layout": now, "micro_batch_sequences": micro})


def request_workers(folder: RunFolder, workers: int, *, by: str) -> None:
    """Request a number of workers for an elastic run; its leader applies it at once."""
    state = state_of(folder)
    if workers < 1:
        raise BadInput(f"{workers} workers: must be at least 1", hint=f"windlass jobs stop {folder.name}")
    if state.stage == "finished":
        raise BadInput(f"run {folder.name} has finished; no workers are needed")
    if not state.elastic and state.run.job.sync.policy != "server":
        raise BadInput(
            f"run {folder.name} is not elastic: its number of workers is fixed",
            hint="stop it, then resume it with: windlass train JOB --resume --elastic --workers N",
        )
    write_workers_request(folder.path, workers, by)


def is_running(folder: RunFolder) -> bool:
    """Whether processes work on a run, or wait in a pause; does not read the journal."""
    return _stage(folder, started=True) == "running"


def saved_cut(folder: RunFolder) -> Partition | None:
    """Return the partition that the newest checkpoint was saved with."""
    found = sorted(folder.path.glob(f"{CHECKPOINTS}/step-*/layout.json"))
    return Partition.model_validate(json.loads(found[-1].read_bytes())["cut"]) if found else None


def effective_values(run: Run, sync: Sync) -> dict[str, Any]:
    """Return the settings that training uses, after planning and scaling."""
    if isinstance(run.shape, NgramShape | HmmShape):
        return _counted(run)
    layout, batch, micro = run.layout, run.batch_sequences, run.micro_batch_sequences
    weights = layout.shares or (1,) * layout.replicas
    return {
        "layout": str(layout),
        "workers": layout.world,
        "replicas": layout.replicas,
        "batch_sequences": batch,
        "batch_tokens": run.tokens_per_step,
        "replica_sequences": [batch * weight // sum(weights) for weight in weights],
        "micro_batches": micro_batches_of(layout, batch, micro),
        "micro_batch_sequences": micro,
        "steps": run.steps,
        "checkpoint_every": run.checkpoint_every,
        "evaluate_every": run.evaluate_every,
        "log_every": run.job.train.log_every,
        "learning_rate": run.learning_rate,
        "warmup_steps": run.warmup_steps,
        "scaling": run.job.train.scaling,
        "sync": sync.model_dump(),
    }


def _counted(run: Run) -> dict[str, Any]:
    """Return the settings of a counted model, which has no batches, learning rate or sync."""
    return {
        "layout": str(run.layout),
        "workers": run.layout.world,
        "steps": run.steps,
        "checkpoint_every": run.checkpoint_every,
        "evaluate_every": run.evaluate_every,
    }


def facts_of(state: RunState) -> dict[str, Any]:
    """Return the state of a run as JSON values."""
    return {
        "run": state.folder.name,
        "path": str(state.folder.path),
        "state": state.stage,
        "step": state.step,
        **{key: state.last.get(key) for key in ("loss", "tokens_per_s", "bytes_sent")},
        "validation_loss": state.evaluation.get("loss"),
        "elastic": state.elastic,
        "predicted": state.planned.predicted.model_dump(mode="json"),
        "effective": effective_values(state.run, state.sync),
        "settings": state.values,
        "requested": state.requested.model_dump(mode="json") if state.requested else None,
        "history": list(state.history),
        "generations": list(state.generations),
    }


def _stage(folder: RunFolder, *, started: bool) -> Stage:
    if folder.finished:
        return "finished"
    lock = folder.path / ".lock"
    try:
        if lock.exists():
            with held(lock, folder.name):
                pass
    except InUse:
        return "running"
    if address_towards_leader(folder) is not None:
        return "running"  # its first machine left, the others continue
    return "stopped" if started else "new"
