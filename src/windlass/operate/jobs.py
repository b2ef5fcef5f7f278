"""Runs as people ask about them: which there are, how each stands, and what to change while one goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windlass.operate.runs import RunFolder, runs_of
from windlass.plan.effective import micro_batches_of
from windlass.spec.errors import BadInput, InUse, NotFound, did_you_mean
from windlass.spec.job import Job
from windlass.spec.layout import Cut
from windlass.spec.read import job_from
from windlass.spec.run import CHECKPOINTS, JOURNAL, Run
from windlass.spec.settings import SETTINGS, Settings
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.lock import held, locked
from windlass.store.place import Place

Stage = Literal["new", "running", "stopped", "finished"]


@dataclass(frozen=True)
class Standing:
    """How a run stands, from its plan, its journal and its newest checkpoint."""

    folder: RunFolder
    run: Run
    stage: Stage
    sync: Sync
    """The policy in force."""
    asked: Settings | None = None
    """A change that was asked for and not taken yet."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest record of a step."""
    evaluation: dict[str, Any] = field(default_factory=dict)


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


def standing_of(folder: RunFolder) -> Standing:
    """Read how a run stands."""
    run = folder.load()
    newest: dict[str, dict[str, Any]] = {}
    for record in Journal(Place(folder.path), JOURNAL).read():
        newest[str(record.get("event"))] = record
    taken, asked = newest.get("settings", {}), _asked(folder)
    return Standing(
        folder=folder,
        run=run,
        stage=_stage(folder, started="step" in newest),
        sync=Sync.model_validate(taken["sync"]) if taken else run.job.sync,
        asked=asked if asked is not None and asked.id > int(taken.get("id", 0)) else None,
        last=newest.get("step", {}),
        evaluation=newest.get("evaluation", {}),
    )


def saved_cut(folder: RunFolder) -> Cut | None:
    """Return the cut that the newest checkpoint was saved under."""
    found = sorted(folder.path.glob(f"{CHECKPOINTS}/step-*/layout.json"))
    return Cut.model_validate(json.loads(found[-1].read_bytes())["cut"]) if found else None


def effective_values(run: Run, sync: Sync) -> dict[str, Any]:
    """Return the settings that training really uses, after planning and scaling."""
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
        "learning_rate": run.learning_rate,
        "warmup_steps": run.warmup_steps,
        "scaling": run.job.train.scaling,
        "sync": sync.model_dump(),
    }


def ask_for(folder: RunFolder, assignments: Sequence[str]) -> Settings:
    """Ask a run to go on with other settings ("sync.policy=diloco"); it takes them at a step border."""
    _check_changeable(assignments)
    with locked(folder.path / ".settings.lock", f"the settings of run {folder.name}"):
        standing = standing_of(folder)
        _check_listening(standing)
        before = _asked(folder)
        now = standing.asked.sync if standing.asked is not None else standing.sync
        tables = {**standing.run.job.model_dump(mode="json"), "sync": now.model_dump()}
        job = job_from(tables, assignments, f"run {folder.name}", folder.path)
        settings = Settings(id=before.id + 1 if before is not None else 1, sync=job.sync)
        Place(folder.path).write(SETTINGS, settings.model_dump_json(indent=1).encode())
        return settings


def _check_changeable(assignments: Sequence[str]) -> None:
    for assignment in assignments:
        key, equals, _ = assignment.partition("=")
        table, dot, _ = key.strip().partition(".")
        if not equals or not dot:
            raise BadInput(f"'{assignment}': write it as sync.KEY=VALUE", hint="example: sync.policy=diloco")
        if table not in Job.model_fields:
            raise BadInput(f"'{assignment}': unknown table '{table}'", hint=did_you_mean(table, ["sync"]))
        if table == "layout":
            raise BadInput(
                f"'{key}' cannot be changed while a run goes on; only [sync] can",
                hint="stop it, and go on under another layout: windlass train JOB --resume --layout ...",
            )
        if table != "sync":
            raise BadInput(
                f"'{key}' cannot be changed in a run: it decides the result from the first step on;"
                " only [sync] can",
                hint=f"start another run: windlass train JOB --set {assignment}",
            )


def _check_listening(standing: Standing) -> None:
    name, layout = standing.folder.name, standing.run.layout
    if standing.stage == "finished":
        raise BadInput(f"run {name} has finished; nothing in it can be changed")
    if layout.dp == 1:
        raise BadInput(
            f"run {name} has no replicas to synchronise: its layout is {layout}",
            hint="[sync] says how the replicas along dp agree",
        )


def _asked(folder: RunFolder) -> Settings | None:
    file = folder.path / SETTINGS
    return Settings.model_validate_json(file.read_bytes()) if file.exists() else None


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
    return "stopped" if started else "new"
