"""What people ask of a run while it goes on, taken at a border by all processes together.

    begin        at the start of a trainer, or of a generation: go on as the run was last asked to
    heed         after a step: take the newest request, if it was not taken yet
    paused       at a border: wait while the newest request says so
    stop_asked   whether the newest request says so
    follow_plan  the plan itself has changed (layout, time budget); what was asked for still counts

`trainer.planned` is the run as planned, `trainer.run` the same under the settings in force.
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

LOOK_EVERY_S = 0.1


def begin(trainer: Trainer) -> None:
    """Go on as the run was last asked to; some of the processes may know it already."""
    _take_newest(trainer)


def heed(trainer: Trainer, request: int) -> None:
    """Take request number `request` if it is newer than what was taken; all processes ask about the same."""
    if request > trainer.taken:
        _take_newest(trainer)


def take(trainer: Trainer, settings: Settings) -> None:
    """Go on with other settings, and tell the journal what changed and who asked."""
    reason = _refusal(trainer, settings)
    trainer.taken = settings.id
    if reason is not None:
        trainer.record.tell("warning", message=f"settings {settings.id} not taken: {reason}")
        _tell(trainer, settings, {}, {}, refused=reason)
        return
    known, before = _in_force(trainer, settings.id)
    trainer.settings = settings
    follow_plan(trainer, trainer.planned)
    _exchange_anew(trainer)
    if settings.id > known:
        _tell(trainer, settings, *difference(before, settings.values))


def follow_plan(trainer: Trainer, planned: Run) -> None:
    """Go on under another plan, with what was asked for."""
    trainer.planned = planned
    trainer.run = applied(planned, trainer.settings)
    trainer.feed.follow(trainer.run)


def paused(trainer: Trainer, stopped: Callable[[], bool]) -> bool:
    """Wait while the run shall pause, taking further requests; return whether anybody was asked to stop.

    All processes wait together and hear of every change in the same round.
    """
    if trainer.settings is None or not trainer.settings.paused:
        return False
    trainer.record.tell("paused", step=trainer.step_number, by=trainer.settings.by)
    while trainer.settings.paused:
        if stop_asked(trainer):
            return True
        time.sleep(LOOK_EVERY_S)
        request = newest_request(trainer.folder) if trainer.grid.crew.rank == 0 else 0
        told = trainer.grid.crew.share([request, bool(stopped())])
        if any(stop for _, stop in told):
            return True
        heed(trainer, told[0][0])
    trainer.record.tell("unpaused", step=trainer.step_number, by=trainer.settings.by)
    return stop_asked(trainer)


def stop_asked(trainer: Trainer) -> bool:
    """Whether the settings in force say that the run shall stop."""
    return trainer.settings is not None and trainer.settings.stop


def _take_newest(trainer: Trainer) -> None:
    """Hear the newest request from rank 0 and take it; who took it already, as a survivor may have, does not.

    One that cannot be read is warned about once: it must not end the run.
    """
    told = trainer.grid.crew.share(_load(trainer.folder) if trainer.grid.crew.rank == 0 else None)[0]
    if told["id"] <= trainer.taken:
        return
    if "reason" in told:
        trainer.taken = told["id"]
        trainer.record.tell("warning", message=f"settings {told['id']} not taken: {told['reason']}")
    else:
        take(trainer, Settings.model_validate(told))


def _load(folder: Path) -> dict[str, Any]:
    number = newest_request(folder)
    if number == 0:
        return {"id": 0}
    try:
        return load_request(folder).model_dump(mode="json")
    except (WindlassError, OSError, ValueError) as error:
        return {"id": number, "reason": str(error)}


def _in_force(trainer: Trainer, request: int) -> tuple[int, dict[str, Any]]:
    """Return the newest request that the journal tells, and the values in force; only rank 0 writes there."""
    if trainer.settings is not None:
        return trainer.settings.id, trainer.settings.values
    if trainer.grid.crew.rank > 0:
        return request, {}
    return answered_before(trainer.folder)


def _exchange_anew(trainer: Trainer) -> None:
    """Let the replicas exchange by the policy in force, from equal weights on."""
    sync = trainer.run.job.sync
    if sync == trainer.sync:
        return
    if not trainer.replicas.at_border(trainer.step_number):
        trainer.agree()
    trainer.sync = sync
    trainer.replicas.change(sync)


def _refusal(trainer: Trainer, settings: Settings) -> str | None:
    if settings.sync is None or not trainer.planned.layout.asynchronous:
        return None
    return next(refusals(trainer.planned, settings.sync), None)


def _tell(
    trainer: Trainer, settings: Settings, changed: dict[str, Any], before: dict[str, Any], **more: Any
) -> None:
    trainer.record.tell(
        "settings",
        step=trainer.step_number,
        id=settings.id,
        by=settings.by,
        changed=changed,
        before=before,
        undoes=settings.undoes,
        **more,
    )
