"""Requests changes of an active run: settings, pause, stop, undo.

Every request is checked against the current state of the run before it is written; the trainer applies it at
the next step boundary. The command line and the HTTP API both use these functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass.runs.run_status import RunState, is_running, request_workers, state_of
from windlass.runs.tail import Tail
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput, ProcessFailed, did_you_mean
from windlass.spec.job import Job, Train
from windlass.spec.read import job_from
from windlass.spec.run import JOURNAL
from windlass.spec.settings import TRAIN_KEYS, Settings, difference, misfits
from windlass.spec.sync import Sync
from windlass.store.settings_file import drafted, request_lock, who, write

LOOK_EVERY_S = 0.1
STATES = ("paused", "stop")
EXAMPLE = "example: train.learning_rate=1e-4"

Values = dict[str, Any]


def request_settings(folder: RunFolder, assignments: Sequence[str], *, by: str | None = None) -> Settings:
    """Request other settings ("train.learning_rate=1e-4", "sync.policy=diloco")."""
    if not assignments:
        raise BadInput("no setting to change was given", hint=EXAMPLE)
    for assignment in assignments:
        _check_changeable(assignment)
    return _ask(folder, by, lambda state: _assigned(state, assignments))


def pause(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Request that a run pauses at its next step boundary, with its state kept in memory."""

    def values(state: RunState) -> Values:
        _check_running(state, "pause")
        if state.wanted["paused"]:
            raise BadInput(f"run {folder.name} is paused already", hint=f"windlass jobs resume {folder.name}")
        return {**state.wanted, "paused": True}

    return _ask(folder, by, values)


def unpause(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Request that a paused run continues."""

    def values(state: RunState) -> Values:
        if not state.wanted["paused"]:
            stopped = state.stage in ("stopped", "new")
            hint = "start it again: windlass train JOB --resume" if stopped else None
            raise BadInput(f"run {folder.name} is not paused; it is {state.stage}", hint=hint)
        return {**state.wanted, "paused": False}

    return _ask(folder, by, values)


def stop(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Request that a run saves a checkpoint and ends; `windlass train --resume` resumes it."""

    def values(state: RunState) -> Values:
        _check_running(state, "stop")
        return {**state.wanted, "stop": True}

    return _ask(folder, by, values)


def undo(folder: RunFolder, *, by: str | None = None) -> Settings:
    """Request the values before the last change; a second undo brings the change back.

    A change that was not applied yet is withdrawn. Pausing and stopping are not changes in this sense: each
    has its own command to reverse it.
    """
    with request_lock(folder.path):
        state = state_of(folder)
        _check_unfinished(state)
        undone, before = _last_change(state)
        return _write(state, state.wanted | before, by, undoes=undone)


def scale(folder: RunFolder, workers: int, *, by: str | None = None) -> None:
    """Request another number of workers for an elastic run."""
    request_workers(folder, workers, by=by or who())


def await_taken(folder: RunFolder, settings: Settings, *, timeout_s: float) -> dict[str, Any]:
    """Wait until the run has applied a request, and return its journal record."""
    tail = Tail(folder.path / JOURNAL)
    until = time.monotonic() + timeout_s
    while True:
        for record in tail.read():
            if record.get("event") == "settings" and record["id"] >= settings.id:
                return record
        _check_time(folder, until, timeout_s, f"did not apply request {settings.id}")
        time.sleep(LOOK_EVERY_S)


def await_stopped(folder: RunFolder, *, timeout_s: float) -> None:
    """Wait until no process works on the run."""
    until = time.monotonic() + timeout_s
    while is_running(folder):
        if time.monotonic() > until:
            raise ProcessFailed(f"run {folder.name} did not stop within {timeout_s:g} s; the request stays")
        time.sleep(LOOK_EVERY_S)


def await_scaled(folder: RunFolder, workers: int, *, timeout_s: float) -> dict[str, Any]:
    """Wait until `workers` workers train, and return the journal record of their generation."""
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
        _check_time(folder, until, timeout_s, f"did not reach {workers} workers")
        time.sleep(LOOK_EVERY_S)


def _check_time(folder: RunFolder, until: float, timeout_s: float, what: str) -> None:
    if not is_running(folder):
        raise BadInput(
            f"run {folder.name} is {state_of(folder).stage}, so it cannot apply requests",
            hint="the request is kept and applied when the run is started again",
        )
    if time.monotonic() > until:
        raise ProcessFailed(f"run {folder.name} {what} within {timeout_s:g} s; the request stays")


def _ask(folder: RunFolder, by: str | None, values: Callable[[RunState], Values]) -> Settings:
    with request_lock(folder.path):
        state = state_of(folder)
        _check_unfinished(state)
        return _write(state, values(state), by)


def _write(state: RunState, values: Values, by: str | None, undoes: int | None = None) -> Settings:
    folder = state.folder
    settings = drafted(folder.path, values, by=by or who(), undoes=undoes, taken=state.taken)
    reason = next(misfits(state.planned, settings, state.step), None)
    if reason is not None:
        raise BadInput(f"run {folder.name}: {reason}")
    write(folder.path, settings)
    return settings


def _assigned(state: RunState, assignments: Sequence[str]) -> Values:
    """Return the requested values: the job's tables with the assignments, checked as a job file is."""
    tables = state.planned.job.model_dump(mode="json")
    wanted = state.wanted
    free = dict.fromkeys(("tokens", "time", "batch_sequences", "warmup_steps"))
    tables["train"] |= free | {key: wanted[key] for key in TRAIN_KEYS if wanted[key] is not None}
    tables["sync"] = wanted["sync"] or tables["sync"]
    job = job_from(tables, assignments, f"run {state.folder.name}", state.folder.path)
    keys = [assignment.partition("=")[0].strip() for assignment in assignments]
    changed: Values = {}
    for table, _, key in (dotted.partition(".") for dotted in keys):
        if table == "sync":
            _check_replicas(state)
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
            f"'{dotted}' cannot be changed while the run is active",
            hint="elastic: windlass jobs scale JOB N; otherwise stop it, and resume it with another layout:"
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


def _check_replicas(state: RunState) -> None:
    layout = state.planned.layout
    if layout.dp == 1 and not state.elastic:
        raise BadInput(
            f"run {state.folder.name} has no replicas to synchronise: its layout is {layout}",
            hint="[sync] says how the replicas along dp agree",
        )


def _check_unfinished(state: RunState) -> None:
    if state.stage == "finished":
        raise BadInput(f"run {state.folder.name} has finished; nothing in it can be changed")


def _check_running(state: RunState, what: str) -> None:
    if not state.running:
        raise BadInput(
            f"run {state.folder.name} is {state.stage}; there is nothing to {what}",
            hint="start it again: windlass train JOB --resume",
        )


def _last_change(state: RunState) -> tuple[int, Values]:
    """Return the id of the last change that can be undone, and the values before it."""
    request, history = state.requested, [*state.history]
    if request is not None:
        history.append({"id": request.id, "before": difference(state.values, request.values)[1]})
    for record in reversed(history):
        before = {key: value for key, value in record.get("before", {}).items() if key not in STATES}
        if before:
            return int(record["id"]), before
    raise BadInput(f"run {state.folder.name} was not changed yet; there is nothing to undo")
