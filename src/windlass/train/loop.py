"""The training loop: when to step, log, evaluate, sample and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model. A run
that is stopped at any moment and restarted ends with the same bits as one that never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from windlass.parallel.device import device_of
from windlass.parallel.device_mesh import init_process_group
from windlass.parallel.process_group import DistributedGroup, ProcessGroup, SingleProcess
from windlass.parallel.strategy import undivided
from windlass.spec.errors import BadInput, StoreFailed, WindlassError
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import RUN_FILE, Run
from windlass.store.store_dir import StoreDir
from windlass.train.async_pipeline.async_trainer import AsyncTrainer
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.collective_errors import raise_on_all_ranks
from windlass.train.evaluate import Evaluation
from windlass.train.event_log import EventLog
from windlass.train.machine_flops import known_peak
from windlass.train.replan import replanned
from windlass.train.result import save_result
from windlass.train.step_sync import StepResult
from windlass.train.trainer import Trainer
from windlass.train.word2vec.start import prepare

Outcome = Literal["finished", "stopped", "left"]

NO_STEP = StepResult(loss=0.0, gradient_norm=0.0, rate=0.0, seconds=0.0)
CLOSE_S = 30.0
"""Time for uploads of the last checkpoints to finish."""
SMOOTHING = 0.9
REPORT_EVERY_S = 0.2


def _never() -> bool:
    return False


@dataclass(frozen=True)
class StopSignals:
    """Requests to a process that trains; each is polled once per step."""

    stop: Callable[[], bool]
    """True to save and end the run."""
    drain: Callable[[], bool] = _never
    """True to leave the loop at the next sync point, for a new generation."""
    leaving: Callable[[], bool] = _never
    """True if a rank leaves for good."""


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Start or resume a run. Return True if it finished, False if it was stopped."""
    run, member = load_run(folder), member or RankInfo()
    if member.world != run.layout.world:
        raise BadInput(f"layout {run.layout} needs {run.layout.world} processes, not {member.world}")
    record = EventLog(folder, rank=member.rank)
    try:
        with init_process_group(member, device_of(run.job.machine)):
            group: ProcessGroup = SingleProcess() if member.world == 1 else DistributedGroup()
            if not prepare(run, folder, record, group, stopped):
                record.emit("stopped", step=0, steps=run.steps)
                return False
            kind = AsyncTrainer if run.layout.asynchronous else Trainer
            trainer = kind(run, folder, record, member)
            emit_start(trainer)
            # Before the checkpoint is loaded: its sync state belongs to these settings.
            trainer.settings.apply_newest(trainer.step_number)
            trainer.restore()
            return run_loop(trainer, StopSignals(stopped)) == "finished"
    finally:
        record.close()


def run_loop(trainer: Trainer, signals: StopSignals) -> Outcome:
    """Step until the run is over, or any process must stop, or the generation changes."""
    outcome = _loop(trainer, signals)
    if outcome == "finished":
        _finish(trainer)
    trainer.ledger.write(durable=True)
    if outcome != "left":
        trainer.checkpoints.close(CLOSE_S)
    return outcome


def emit_start(trainer: Trainer) -> None:
    run = trainer.run
    trainer.record.emit(
        "started",
        parameters=run.network.parameters,
        steps=run.steps,
        device=trainer.device.type,
        threads=torch.get_num_threads(),
        compile=run.compile,
        layout=str(run.layout),
        workers=run.layout.world,
    )


def _loop(trainer: Trainer, signals: StopSignals) -> Outcome:
    # Only rank 0 reports it; a new worker that measured it would keep the others waiting.
    peak = (trainer.peak or known_peak(trainer.device)) if trainer.grid.world_group.rank == 0 else math.inf
    reporter = _StepReporter(trainer, peak * trainer.run.layout.world)
    agreed_at = trainer.step_number
    outcome_now = _stop_or_drain(trainer, NO_STEP, signals)  # a paused run stays paused
    if outcome_now is not None:
        return outcome_now
    while trainer.step_number < trainer.run.steps:
        facts = trainer.train_step(stop=signals.stop(), drain=signals.drain())
        _check_finite(facts, trainer)
        reporter.emit_step(facts)
        if not facts.agreed:
            continue
        trainer.settings.apply_newest(trainer.step_number, facts.request)
        _replan(trainer)
        if facts.written:  # by all ranks
            trainer.poll_save()
            trainer.balance()
        outcome_now = _stop_or_drain(trainer, facts, signals)
        if outcome_now is not None:
            return outcome_now
        if facts.memory_save_due:
            trainer.keep_in_memory()
        if trainer.step_number < trainer.run.steps:
            _evaluate_and_save(trainer, agreed_at, due=facts.due)
        agreed_at = trainer.step_number
    return "finished"


def _stop_or_drain(trainer: Trainer, facts: StepResult, signals: StopSignals) -> Outcome | None:
    """Stop with a checkpoint or drain, if requested; also waits here while the run is paused."""
    stop, drain = facts.stop or trainer.settings.stop, facts.drain
    if not stop and not drain and trainer.settings.paused:
        begin = time.perf_counter()
        trainer.pause()
        interrupted = trainer.settings.wait_while_paused(
            trainer.step_number, lambda: signals.stop() or signals.drain()
        )
        if interrupted:
            votes = trainer.grid.world_group.all_gather_json([signals.stop(), signals.drain()])
            stop = trainer.settings.stop or any(one for one, _ in votes)
            drain = any(other for _, other in votes)
        trainer.ledger.spend("control", time.perf_counter() - begin)
    if stop:
        trainer.save()
        trainer.record.emit("stopped", step=trainer.step_number, steps=trainer.run.steps)
        return "stopped"
    if drain:
        _before_regroup(trainer, signals)
        return "left"
    return None


def _before_regroup(trainer: Trainer, signals: StopSignals) -> None:
    """Before the group changes: synchronise replicas; save a checkpoint if a leaving rank has the only
    copy of a shard."""
    trainer.weights.average_now()
    trainer.poll_save()
    if not undivided(trainer.run.layout) and any(trainer.grid.world_group.all_gather_json(signals.leaving())):
        try:
            trainer.save()
        except StoreFailed as failure:
            trainer.record.emit("warning", message=failure.message)


def _evaluate_and_save(trainer: Trainer, before: int, *, due: bool) -> None:
    """Evaluate and save if that is due, or became due since step `before`.

    Checkpoints are written in the background. A failed one does not end the run.
    """
    step, run = trainer.step_number, trainer.run
    if step // run.evaluate_every > before // run.evaluate_every:
        trainer.evaluate(run.evaluate_sequences)
        trainer.sample()
    if due or step // run.checkpoint_every > before // run.checkpoint_every:
        _save(trainer)


def _save(trainer: Trainer) -> None:
    """Save a checkpoint, in the background unless the pipeline may be re-cut after it."""
    layout = trainer.run.layout
    if trainer.saves_in_background and not (layout.pp > 1 and layout.recut == "apply"):
        trainer.save(wait=False)
        return
    try:
        trainer.save()
    except StoreFailed as failure:
        trainer.record.emit("warning", message=failure.message)
    else:
        trainer.balance()


def _finish(trainer: Trainer) -> None:
    result = trainer.evaluate(trainer.run.final_sequences)
    trainer.sample()
    source = CheckpointReader(trainer.save())
    with raise_on_all_ranks(trainer.grid.world_group, f"{trainer.folder}: the model could not be written"):
        _export(trainer, source, result)


def _export(trainer: Trainer, source: CheckpointReader, result: Evaluation) -> None:
    if trainer.grid.world_group.rank == 0:
        path = save_result(trainer.folder, trainer.run, source, trainer.corpus, result)
        seconds, sent = round(trainer.train_s, 2), trainer.replicas.bytes_sent
        trainer.record.emit(
            "finished",
            step=trainer.step_number,
            train_s=seconds,
            bytes_sent=sent,
            model=str(path),
            durable=True,
        )


def _replan(trainer: Trainer) -> None:
    """With a time budget, adjust the number of steps to their measured duration."""
    planned = trainer.settings.planned
    run = replanned(planned, trainer.step_number, trainer.train_s)
    if run is planned:
        return
    trainer.record.emit("replanned", step=trainer.step_number, steps_before=planned.steps, steps=run.steps)
    trainer.settings.follow_plan(run)
    if trainer.grid.world_group.rank == 0:
        save_length(trainer.folder, run)


def _check_finite(facts: StepResult, trainer: Trainer) -> None:
    if math.isfinite(facts.loss) and math.isfinite(facts.gradient_norm):
        return
    raise WindlassError(
        f"step {trainer.step_number}: the loss is {facts.loss}, its gradient {facts.gradient_norm}",
        hint=f"lower [train] learning_rate (it was {facts.rate:.3g}) or lengthen warmup_steps",
    )


class _StepReporter:
    """Logs steps: every `log_every`-th to the journal, the others only to the progress display."""

    def __init__(self, trainer: Trainer, peak: float) -> None:
        self._trainer, self._peak = trainer, peak
        self._step_s: float | None = None
        self._reported_at = 0.0

    def emit_step(self, facts: StepResult) -> None:
        trainer, run = self._trainer, self._trainer.run
        before = facts.seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * facts.seconds
        step, now = trainer.step_number, time.monotonic()
        # A checkpoint is verified by the loss of the step after it, so that step is always kept.
        kept = step % run.job.train.log_every == 0 or step in (run.steps, trainer.checkpoints.begun_step + 1)
        if not kept and now - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = now
        speed = run.tokens_per_step / self._step_s
        trainer.record.emit(
            "step",
            keep=kept,
            step=step,
            steps=run.steps,
            loss=round(facts.loss, 6),
            rate=facts.rate,
            gradient_norm=round(facts.gradient_norm, 4),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * run.network.training_flops_per_token() / self._peak, 4),
            seconds_left=round((run.steps - step) * self._step_s, 1),
            **self._more(),
        )
        if kept:
            trainer.record.plot(
                step, train__loss=facts.loss, train__rate=facts.rate, train__tokens_per_s=speed
            )

    def _more(self) -> dict[str, Any]:
        """Return facts that only some runs have: bytes sent to other replicas, the cache of a remote
        corpus."""
        extra: dict[str, Any] = {}
        if not self._trainer.replicas.alone:
            extra["bytes_sent"] = self._trainer.replicas.bytes_sent
        cache = self._trainer.corpus.facts()
        if cache is not None:
            extra["cache"] = asdict(cache)
        return extra


def load_run(folder: Path) -> Run:
    return Run.model_validate_json(StoreDir(folder).read(RUN_FILE))


def save_length(folder: Path, run: Run) -> None:
    """Write a new number of steps and its intervals to run.json; nothing else changes."""
    kept = ("steps", "evaluate_every", "checkpoint_every", "warmup_steps")
    planned = load_run(folder).model_copy(update={key: getattr(run, key) for key in kept})
    save_run(folder, planned)


def save_run(folder: Path, run: Run) -> None:
    StoreDir(folder).write(RUN_FILE, run.model_dump_json(indent=1).encode())
