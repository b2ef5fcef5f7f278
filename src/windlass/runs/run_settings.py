"""Asks a run to change while it goes on: other settings, a pause, an end, or what was before.

Everything is checked here, against the run as it stands, before it is written; the trainer takes it at its
next border. Command line and HTTP both come through these functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass.runs.run_status import RunState, ask_workers, goes_on, standing_of
from windlass.runs.tail import Tail
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput, ProcessFailed, did_you_mean
from windlass.spec.job import Job, Train
from windlass.spec.read import job_from
from windlass.spec.run import JOURNAL
from windlass.spec.settings import TRAIN_KEYS, Settings, difference, misfits
from windlass.spec.sync import Sync
from windlass.store.settings_file import asking, drafted, who, write

LOOK_EVERY_S = 0.1
STATES = ("paused", "stop")
EXAMPLE = "example: train.learning_rate=1e-4"

Values = dict[str, Any]


def ask_for(folder: RunFolder, assignments: Sequence[str], *, by: str | None = None) -> Settings:
    """Ask for other settings ("train.learning_rate=1e-4", "sync.policy=diloco")."""
    if not assignments:
        raise BadInput("nothing to change was said", hint=EXAMPLE)
    for assignment in assignments:
        _check_changeable(assignment)
    return _ask(folder, by, lambda standing: _assigned(standing, assignments))


def pause(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Ask a run to wait at its next border, with everything kept in memory."""

    def values(standing: RunState) -> Values:
        _check_running(standing, "pause")
        if standing.wanted["paused"]:
            raise BadInput(f"run {folder.name} is paused already", hint=f"windlass jobs resume {folder.name}")
        return {**standing.wanted, "paused": True}

    return _ask(folder, by, values)


def unpause(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Ask a run that waits to go on."""

    def values(standing: RunState) -> Values:
        if not standing.wanted["paused"]:
            stopped = standing.stage in ("stopped", "new")
            hint = "start it again: windlass train JOB --resume" if stopped else None
            raise BadInput(f"run {folder.name} is not paused; it is {standing.stage}", hint=hint)
        return {**standing.wanted, "paused": False}

    return _ask(folder, by, values)


def stop(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Ask a run to save a checkpoint and end; `windlass train --resume` goes on from it."""

    def values(standing: RunState) -> Values:
        _check_running(standing, "stop")
        return {**standing.wanted, "stop": True}

    return _ask(folder, by, values)


def undo(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Ask for the values before the last change; to undo that again brings the change back.

    A change that was not taken yet is withdrawn. To pause and to stop are no changes in this sense: each has
    a verb that takes it back.
    """
    with asking(folder.path):
        standing = standing_of(folder)
        _check_unfinished(standing)
        undone, before = _last_change(standing)
        return _write(standing, standing.wanted | before, by, undoes=undone)


def scale(folder: RunFolder, workers: int, *, by: str | None = None) -> None:
    """Ask an elastic run to go on with another number of workers."""
    ask_workers(folder, workers, by=by or who())


def await_taken(folder: RunFolder, settings: Settings, *, timeout_s: float) -> dict[str, Any]:
    """Wait until the run has taken a request, and return what its journal says of it."""
    tail = Tail(folder.path / JOURNAL)
    until = time.monotonic() + timeout_s
    while True:
        for record in tail.read():
            if record.get("event") == "settings" and record["id"] >= settings.id:
                return record
        _check_time(folder, until, timeout_s, f"did not take request {settings.id}")
        time.sleep(LOOK_EVERY_S)


def await_stopped(folder: RunFolder, *, timeout_s: float) -> None:
    """Wait until nobody works on the run any more."""
    until = time.monotonic() + timeout_s
    while goes_on(folder):
        if time.monotonic() > until:
            raise ProcessFailed(
                f"run {folder.name} did not stop within {timeout_s:g} s; it is still asked to"
            )
        time.sleep(LOOK_EVERY_S)


def await_scaled(folder: RunFolder, workers: int, *, timeout_s: float) -> dict[str, Any]:
    """Wait until so many workers train together, and return what the journal says of their generation."""
    tail, until = Tail(folder.path / JOURNAL), time.monotonic() + timeout_s
    newest: dict[str, Any] = {"members": ()}
    while True:
        for record in tail.read():
            if record.get("event") == "step" and record.get("workers") == workers:
                return {**record, "reason": f"step {record['step']}", "layout": {"dp": workers}}
            if record.get("event") == "generation":
                newest = {**record, "settled": False}
            elif record.get("event") == "settled" and record["generation"] == newest.get("generation"):
                newest["settled"] = True
        if len(newest["members"]) == workers and newest["settled"]:
            return newest
        _check_time(folder, until, timeout_s, f"did not come to {workers} workers")
        time.sleep(LOOK_EVERY_S)


def _check_time(folder: RunFolder, until: float, timeout_s: float, what: str) -> None:
    if not goes_on(folder):
        raise BadInput(
            f"run {folder.name} is {standing_of(folder).stage}, so nothing is taken now",
            hint="what was asked for is kept and counts when the run is started again",
        )
    if time.monotonic() > until:
        raise ProcessFailed(f"run {folder.name} {what} within {timeout_s:g} s; it stays asked for")


def _ask(folder: RunFolder, by: str | None, values: Callable[[RunState], Values]) -> Settings:
    with asking(folder.path):
        standing = standing_of(folder)
        _check_unfinished(standing)
        return _write(standing, values(standing), by)


def _write(standing: RunState, values: Values, by: str | None, undoes: int | None = None) -> Settings:
    folder = standing.folder
    settings = drafted(folder.path, values, by=by or who(), undoes=undoes, taken=standing.taken)
    reason = next(misfits(standing.planned, settings, standing.step), None)
    if reason is not None:
        raise BadInput(f"run {folder.name}: {reason}")
    write(folder.path, settings)
    return settings


def _assigned(standing: RunState, assignments: Sequence[str]) -> Values:
    """Return what is wanted: the job's tables with the assignments, checked as a job file is."""
    tables = standing.planned.job.model_dump(mode="json")
    wanted = standing.wanted
    free = dict.fromkeys(("tokens", "time", "batch_sequences", "warmup_steps"))
    tables["train"] |= free | {key: wanted[key] for key in TRAIN_KEYS if wanted[key] is not None}
    tables["sync"] = wanted["sync"] or tables["sync"]
    job = job_from(tables, assignments, f"run {standing.folder.name}", standing.folder.path)
    keys = [assignment.partition("=")[0].strip() for assignment in assignments]
    changed: Values = {}
    for table, _, key in (dotted.partition(".") for dotted in keys):
        if table == "sync":
            _check_replicas(standing)
            changed["sync"] = job.sync.model_dump(mode="json")
        else:
            changed[key] = getattr(job.train, key)
    return wanted | changed


def _check_changeable(assignment: str) -> None:
    dotted, equals, _ = assignment.partition("=")
    table, dot, key = dotted.strip().partition(".")
    if not equals or not dot:
        raise BadInput(f"'{assignment}': write it as TABLE.KEY=VALUE", hint=EXAMPLE)
    if table not in Job.model_fields:
        raise BadInput(
            f"'{assignment}': unknown table '{table}'", hint=did_you_mean(table, ["sync", "train"])
        )
    if table == "layout":
        raise BadInput(
            f"'{dotted}' cannot be changed while a run goes on",
            hint="elastic: windlass jobs scale JOB N; otherwise stop it, and go on under another layout:"
            " windlass train JOB --resume --layout ...",
        )
    known = Train.model_fields if table == "train" else Sync.model_fields if table == "sync" else {key: None}
    if key not in known:
        changeable = list(TRAIN_KEYS) if table == "train" else list(known)
        raise BadInput(f"'{assignment}': [{table}] has no key '{key}'", hint=did_you_mean(key, changeable))
    if table not in ("train", "sync") or (table == "train" and key not in TRAIN_KEYS):
        raise BadInput(
            f"'{dotted}' cannot be changed in a run: it decides the result from the first step on",
            hint=f"can be changed: [sync], and of [train] {', '.join(TRAIN_KEYS)}",
        )


def _check_replicas(standing: RunState) -> None:
    layout = standing.planned.layout
    if layout.dp == 1 and not standing.elastic:
        raise BadInput(
            f"run {standing.folder.name} has no replicas to synchronise: its layout is {layout}",
            hint="[sync] says how the replicas along dp agree",
        )


def _check_unfinished(standing: RunState) -> None:
    if standing.stage == "finished":
        raise BadInput(f"run {standing.folder.name} has finished; nothing in it can be changed")


def _check_running(standing: RunState, what: str) -> None:
    if not standing.running:
        raise BadInput(
            f"run {standing.folder.name} is {standing.stage}; there is nothing to {what}",
            hint="start it again: windlass train JOB --resume",
        )


def _last_change(standing: RunState) -> tuple[int, Values]:
    """Return the number of the last change that can be taken back, and the values before it."""
    asked, history = standing.asked, [*standing.history]
    if asked is not None:
        history.append({"id": asked.id, "before": difference(standing.values, asked.values)[1]})
    for record in reversed(history):
        before = {key: value for key, value in record.get("before", {}).items() if key not in STATES}
        if before:
            return int(record["id"]), before
    raise BadInput(f"run {standing.folder.name} was not changed yet; there is nothing to undo")
