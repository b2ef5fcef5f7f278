"""The training loop: when to step, tell, evaluate, sample and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model.
Stopped at any moment and started again, it ends with the same bits as if it had never stopped.
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
from windlass.train import runtime_settings
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

NOTHING_ASKED = StepResult(loss=0.0, gradient_norm=0.0, rate=0.0, seconds=0.0)
CLOSE_S = 30.0
"""For copies of the last checkpoints to reach the store."""
SMOOTHING = 0.9
TELL_EVERY_S = 0.2


def _never() -> bool:
    return False


@dataclass(frozen=True)
class StopSignals:
    """What a process may be asked while it trains; each is looked at once a step."""

    stop: Callable[[], bool]
    """To save, and to end."""
    leave: Callable[[], bool] = _never
    """To part at the next border, for a change of company."""
    depart: Callable[[], bool] = _never
    """When it parts: whether somebody will not come back."""


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run, member = load_run(folder), member or RankInfo()
    if member.world != run.layout.world:
        raise BadInput(f"layout {run.layout} needs {run.layout.world} processes, not {member.world}")
    record = EventLog(folder, rank=member.rank)
    try:
        with init_process_group(member, device_of(run.job.machine)):
            crew: ProcessGroup = SingleProcess() if member.world == 1 else DistributedGroup()
            if not prepare(run, folder, record, crew, stopped):
                record.tell("stopped", step=0, steps=run.steps)
                return False
            kind = AsyncTrainer if run.layout.asynchronous else Trainer
            trainer = kind(run, folder, record, member)
            tell_start(trainer)
            # Before the checkpoint is loaded: what it keeps of the exchange belongs to these settings.
            runtime_settings.begin(trainer)
            trainer.restore()
            return run_loop(trainer, StopSignals(stopped)) == "finished"
    finally:
        record.close()


def run_loop(trainer: Trainer, wishes: StopSignals) -> Outcome:
    """Step until the run is over, or any process is asked to stop, or to part for a change of company."""
    outcome = _loop(trainer, wishes)
    if outcome == "finished":
        _finish(trainer)
    trainer.ledger.write(durable=True)
    if outcome != "left":
        trainer.checkpoints.close(CLOSE_S)
    return outcome


def tell_start(trainer: Trainer) -> None:
    run = trainer.run
    trainer.record.tell(
        "started",
        parameters=run.network.parameters,
        steps=run.steps,
        device=trainer.device.type,
        threads=torch.get_num_threads(),
        compile=run.compile,
        layout=str(run.layout),
        workers=run.layout.world,
    )


def _loop(trainer: Trainer, wishes: StopSignals) -> Outcome:
    # Only rank 0's is told; a newcomer that measured it would keep the others waiting.
    peak = (trainer.peak or known_peak(trainer.device)) if trainer.grid.crew.rank == 0 else math.inf
    teller = _Teller(trainer, peak * trainer.run.layout.world)
    agreed_at = trainer.step_number
    parted = _parted(trainer, NOTHING_ASKED, wishes)  # a run that paused or was stopped goes on so
    if parted is not None:
        return parted
    while trainer.step_number < trainer.run.steps:
        facts = trainer.step(stop=wishes.stop(), leave=wishes.leave())
        _check_finite(facts, trainer)
        teller.tell(facts)
        if not facts.agreed:
            continue
        runtime_settings.heed(trainer, facts.request)
        _replan(trainer)
        if facts.written:
            _commit(trainer)
        parted = _parted(trainer, facts, wishes)
        if parted is not None:
            return parted
        if facts.forgets:
            trainer.remember()
        if trainer.step_number < trainer.run.steps:
            _look_and_save(trainer, agreed_at, due=facts.due)
        agreed_at = trainer.step_number
    return "finished"


def _parted(trainer: Trainer, facts: StepResult, wishes: StopSignals) -> Outcome | None:
    """Stop with a checkpoint or part, if that was asked for; a pause is waited out here."""
    stop, leave = facts.stop or runtime_settings.stop_asked(trainer), facts.leave
    if not stop and not leave and trainer.settings is not None and trainer.settings.paused:
        begin = time.perf_counter()
        trainer.pause()
        if runtime_settings.paused(trainer, lambda: wishes.stop() or wishes.leave()):
            told = trainer.grid.crew.share([wishes.stop(), wishes.leave()])
            stop = runtime_settings.stop_asked(trainer) or any(one for one, _ in told)
            leave = any(other for _, other in told)
        trainer.ledger.spend("control", time.perf_counter() - begin)
    if stop:
        trainer.save()
        trainer.record.tell("stopped", step=trainer.step_number, steps=trainer.run.steps)
        return "stopped"
    if leave:
        _hand_over(trainer, wishes)
        return "left"
    return None


def _hand_over(trainer: Trainer, wishes: StopSignals) -> None:
    """Part with equal weights, and with a checkpoint where somebody goes who alone holds a part of them."""
    trainer.agree()
    if trainer.checkpoints.saving:
        trainer.end_save()
    if not undivided(trainer.run.layout) and any(trainer.grid.crew.share(wishes.depart())):
        try:
            trainer.save()
        except StoreFailed as failure:
            trainer.record.tell("warning", message=failure.message)


def _look_and_save(trainer: Trainer, before: int, *, due: bool) -> None:
    """Evaluate and save when it is time, or has become so since step `before`.

    Checkpoints are written while training goes on. A failed one costs a checkpoint, not the run.
    """
    step, run = trainer.step_number, trainer.run
    if step // run.evaluate_every > before // run.evaluate_every:
        trainer.evaluate(run.evaluate_sequences)
        trainer.sample()
    if due or step // run.checkpoint_every > before // run.checkpoint_every:
        _begin_save(trainer)


def _begin_save(trainer: Trainer) -> None:
    """Start a checkpoint; one that a new cut may follow from is waited for."""
    layout = trainer.run.layout
    if trainer.saves_beside and not (layout.pp > 1 and layout.recut == "apply"):
        trainer.begin_save()
        return
    try:
        trainer.save()
    except StoreFailed as failure:
        trainer.record.tell("warning", message=failure.message)
    else:
        trainer.balance()


def _commit(trainer: Trainer) -> None:
    """Let a checkpoint be finished whose bytes are written."""
    trainer.end_save()
    trainer.balance()


def _finish(trainer: Trainer) -> None:
    result = trainer.evaluate(trainer.run.final_sequences)
    trainer.sample()
    source = CheckpointReader(trainer.save())
    with raise_on_all_ranks(trainer.grid.crew, f"{trainer.folder}: the model could not be written"):
        _export(trainer, source, result)


def _export(trainer: Trainer, source: CheckpointReader, result: Evaluation) -> None:
    if trainer.grid.crew.rank == 0:
        path = save_result(trainer.folder, trainer.run, source, trainer.corpus, result)
        seconds, sent = round(trainer.train_s, 2), trainer.replicas.bytes_sent
        trainer.record.tell(
            "finished",
            step=trainer.step_number,
            train_s=seconds,
            bytes_sent=sent,
            model=str(path),
            durable=True,
        )


def _replan(trainer: Trainer) -> None:
    """With a time budget, correct the number of steps by what the steps really take."""
    run = replanned(trainer.planned, trainer.step_number, trainer.train_s)
    if run is trainer.planned:
        return
    before = trainer.planned.steps
    trainer.record.tell("replanned", step=trainer.step_number, steps_before=before, steps=run.steps)
    runtime_settings.follow_plan(trainer, run)
    if trainer.grid.crew.rank == 0:
        save_length(trainer.folder, run)


def _check_finite(facts: StepResult, trainer: Trainer) -> None:
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

    def tell(self, facts: StepResult) -> None:
        trainer, run = self._trainer, self._trainer.run
        before = facts.seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * facts.seconds
        step, now = trainer.step_number, time.monotonic()
        # A checkpoint is held to the loss of the step after it, so that one is always kept.
        kept = step % run.job.train.log_every == 0 or step in (run.steps, trainer.checkpoints.begun_step + 1)
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
            share_of_peak=round(speed * run.network.training_flops_per_token() / self._peak, 4),
            seconds_left=round((run.steps - step) * self._step_s, 1),
            **self._more(),
        )
        if kept:
            trainer.record.plot(
                step, train__loss=facts.loss, train__rate=facts.rate, train__tokens_per_s=speed
            )

    def _more(self) -> dict[str, Any]:
        """What only some runs have: bytes sent to other replicas, and the cache of a remote corpus."""
        told: dict[str, Any] = {}
        if not self._trainer.replicas.alone:
            told["bytes_sent"] = self._trainer.replicas.bytes_sent
        cache = self._trainer.corpus.facts()
        if cache is not None:
            told["cache"] = asdict(cache)
        return told


def load_run(folder: Path) -> Run:
    return Run.model_validate_json(StoreDir(folder).read(RUN_FILE))


def save_length(folder: Path, run: Run) -> None:
    """Write down how long a run shall be; its layout stays what was asked for."""
    kept = ("steps", "evaluate_every", "checkpoint_every", "warmup_steps")
    planned = load_run(folder).model_copy(update={key: getattr(run, key) for key in kept})
    save_run(folder, planned)


def save_run(folder: Path, run: Run) -> None:
    StoreDir(folder).write(RUN_FILE, run.model_dump_json(indent=1).encode())
