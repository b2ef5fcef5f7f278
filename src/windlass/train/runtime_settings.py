"""Runtime settings: changes that users request while a run is active, applied by all processes at a sync
point.

    begin              at the start of a trainer or generation: apply the newest request
    apply_newest       after a step: apply the newest request if it is new
    wait_while_paused  at a sync point: wait while the newest request says so
    stop_requested     True if the newest request asks for a stop
    follow_plan        the plan itself has changed (layout, time budget); requested settings stay in force

`trainer.planned` is the run as planned, `trainer.run` the same with the settings in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.errors import WindlassError
from windlass.spec.run import Run
from windlass.spec.settings import Settings, applied, difference
from windlass.train.async_pipeline.async_trainer import refusals
from windlass.train.settings_file import answered_before, load_request, newest_request
from windlass.train.trainer import Trainer

POLL_EVERY_S = 0.1


def begin(trainer: Trainer) -> None:
    """Apply the newest request; some processes may have applied it already."""
    _take_newest(trainer)


def apply_newest(trainer: Trainer, request: int) -> None:
    """Apply request number `request` if it is newer than the last one; all processes pass the same number."""
    if request > trainer.taken:
        _take_newest(trainer)


def apply(trainer: Trainer, settings: Settings) -> None:
    """Apply settings, and log what changed and who requested it."""
    reason = _refusal(trainer, settings)
    trainer.taken = settings.id
    if reason is not None:
        trainer.record.emit("warning", message=f"settings {settings.id} not applied: {reason}")
        _emit_settings(trainer, settings, {}, {}, refused=reason)
        return
    known, before = _in_force(trainer, settings.id)
    trainer.settings = settings
    follow_plan(trainer, trainer.planned)
    _change_policy(trainer)
    if settings.id > known:
        _emit_settings(trainer, settings, *difference(before, settings.values))


def follow_plan(trainer: Trainer, planned: Run) -> None:
    """Continue with another plan, and with the requested settings."""
    trainer.planned = planned
    trainer.run = applied(planned, trainer.settings)
    trainer.feed.follow(trainer.run)


def wait_while_paused(trainer: Trainer, stopped: Callable[[], bool]) -> bool:
    """Wait while the run is paused, applying further requests; return True if any process must stop.

    All processes wait together and see every change in the same round.
    """
    if trainer.settings is None or not trainer.settings.paused:
        return False
    trainer.record.emit("paused", step=trainer.step_number, by=trainer.settings.by)
    while trainer.settings.paused:
        if stop_requested(trainer):
            return True
        time.sleep(POLL_EVERY_S)
        request = newest_request(trainer.folder) if trainer.grid.world_group.rank == 0 else 0
        votes = trainer.grid.world_group.all_gather_json([request, bool(stopped())])
        if any(stop for _, stop in votes):
            return True
        apply_newest(trainer, votes[0][0])
    trainer.record.emit("unpaused", step=trainer.step_number, by=trainer.settings.by)
    return stop_requested(trainer)


def stop_requested(trainer: Trainer) -> bool:
    """Return True if the settings in force ask for a stop."""
    return trainer.settings is not None and trainer.settings.stop


def _take_newest(trainer: Trainer) -> None:
    """Get the newest request from rank 0 and apply it, unless this process (a survivor) has done so already.

    A request that cannot be read causes one warning: it must not end the run.
    """
    request = trainer.grid.world_group.all_gather_json(
        _load(trainer.folder) if trainer.grid.world_group.rank == 0 else None
    )[0]
    if request["id"] <= trainer.taken:
        return
    if "reason" in request:
        trainer.taken = request["id"]
        trainer.record.emit("warning", message=f"settings {request['id']} not applied: {request['reason']}")
    else:
        apply(trainer, Settings.model_validate(request))


def _load(folder: Path) -> dict[str, Any]:
    number = newest_request(folder)
    if number == 0:
        return {"id": 0}
    try:
        return load_request(folder).model_dump(mode="json")
    except (WindlassError, OSError, ValueError) as error:
        return {"id": number, "reason": str(error)}


def _in_force(trainer: Trainer, request: int) -> tuple[int, dict[str, Any]]:
    """Return the newest request in the journal, and the values in force; only rank 0 reads and writes it."""
    if trainer.settings is not None:
        return trainer.settings.id, trainer.settings.values
    if trainer.grid.world_group.rank > 0:
        return request, {}
    return answered_before(trainer.folder)


def _change_policy(trainer: Trainer) -> None:
    """Switch the replicas to the sync policy in force, from equal weights on."""
    sync = trainer.run.job.sync
    if sync == trainer.sync:
        return
    if not trainer.replicas.at_sync_point(trainer.step_number):
        trainer.average_now()
    trainer.sync = sync
    trainer.replicas.change(sync)


def _refusal(trainer: Trainer, settings: Settings) -> str | None:
    if settings.sync is None or not trainer.planned.layout.asynchronous:
        return None
    return next(refusals(trainer.planned, settings.sync), None)


def _emit_settings(
    trainer: Trainer, settings: Settings, changed: dict[str, Any], before: dict[str, Any], **more: Any
) -> None:
    trainer.record.emit(
        "settings",
        step=trainer.step_number,
        id=settings.id,
        by=settings.by,
        changed=changed,
        before=before,
        undoes=settings.undoes,
        **more,
    )
