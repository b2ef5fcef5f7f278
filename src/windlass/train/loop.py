"""The training loop: when to step, tell, evaluate, sample and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model.
Stopped at any moment and started again, it ends with the same bits as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.run import RUN_FILE, Run
from windlass.store.place import Place
from windlass.train.peak import peak_flops
from windlass.train.record import Record
from windlass.train.replan import replanned
from windlass.train.result import save_result
from windlass.train.trainer import StepFacts, Trainer

SMOOTHING = 0.9
TELL_EVERY_S = 0.2


def train(folder: Path, stopped: Callable[[], bool]) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run = load_run(folder)
    record = Record(folder)
    try:
        trainer = Trainer(run, folder, record)
        record.tell(
            "started",
            parameters=run.shape.parameters,
            steps=run.steps,
            device=trainer.device.type,
            threads=run.threads,
            compile=run.compile,
        )
        trainer.restore()
        if not _loop(trainer, stopped):
            return False
        _finish(trainer)
        return True
    finally:
        record.close()


def _loop(trainer: Trainer, stopped: Callable[[], bool]) -> bool:
    """Step until the run is over; return False when asked to stop before."""
    teller = _Teller(trainer, peak_flops(trainer.device))
    while trainer.step_number < trainer.run.steps:
        facts = trainer.step()
        _check_finite(facts, trainer)
        teller.tell(facts)
        _replan(trainer)
        if stopped():
            trainer.save()
            trainer.record.tell("stopped", step=trainer.step_number, steps=trainer.run.steps)
            return False
        if trainer.step_number < trainer.run.steps:
            _look_and_save(trainer)
    return True


def _look_and_save(trainer: Trainer) -> None:
    """Evaluate and save when it is time. A failed save costs a checkpoint, not the run."""
    if trainer.step_number % trainer.run.evaluate_every == 0:
        trainer.evaluate(trainer.run.evaluate_sequences)
        trainer.sample()
    if trainer.step_number % trainer.run.checkpoint_every == 0:
        try:
            trainer.save()
        except StoreFailed as failure:
            trainer.record.tell("warning", message=failure.message)


def _finish(trainer: Trainer) -> None:
    result = trainer.evaluate(trainer.run.final_sequences)
    trainer.sample()
    trainer.save()
    path = save_result(trainer.folder, trainer.run, trainer.model, trainer.corpus, result)
    seconds = round(trainer.train_s, 2)
    trainer.record.tell("finished", step=trainer.step_number, train_s=seconds, model=str(path), sync=True)


def _replan(trainer: Trainer) -> None:
    """With a time budget, correct the number of steps by what the steps really take."""
    run = replanned(trainer.run, trainer.step_number, trainer.train_s)
    if run is trainer.run:
        return
    before = trainer.run.steps
    trainer.record.tell("replanned", step=trainer.step_number, steps_before=before, steps=run.steps)
    trainer.run = run
    save_run(trainer.folder, run)


def _check_finite(facts: StepFacts, trainer: Trainer) -> None:
    if math.isfinite(facts.loss) and math.isfinite(facts.gradient_norm):
        return
    raise WindlassError(
        f"step {trainer.step_number}: the loss is {facts.loss}, its gradient {facts.gradient_norm}",
        hint=f"lower [train] learning_rate (it was {facts.rate:.3g}) or lengthen warmup_steps",
    )


class _Teller:
    """Tells of steps: every `log_every`-th into the journal, the others only to draw a line from."""

    def __init__(self, trainer: Trainer, peak: float) -> None:
        self._trainer, self._peak = trainer, peak
        self._step_s: float | None = None
        self._told_at = 0.0

    def tell(self, facts: StepFacts) -> None:
        trainer, run = self._trainer, self._trainer.run
        before = facts.seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * facts.seconds
        step, now = trainer.step_number, time.monotonic()
        kept = step % run.job.train.log_every == 0 or step == run.steps
        if not kept and now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        speed = run.tokens_per_step / self._step_s
        trainer.record.tell(
            "step",
            keep=kept,
            step=step,
            steps=run.steps,
            loss=round(facts.loss, 6),
            rate=facts.rate,
            gradient_norm=round(facts.gradient_norm, 4),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * run.shape.training_flops_per_token() / self._peak, 4),
            seconds_left=round((run.steps - step) * self._step_s, 1),
        )
        if kept:
            trainer.record.plot(
                step, train__loss=facts.loss, train__rate=facts.rate, train__tokens_per_s=speed
            )


def load_run(folder: Path) -> Run:
    return Run.model_validate_json(Place(folder).read(RUN_FILE))


def save_run(folder: Path, run: Run) -> None:
    Place(folder).write(RUN_FILE, run.model_dump_json(indent=1).encode())
