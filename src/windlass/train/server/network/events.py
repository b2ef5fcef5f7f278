"""Events of a network on servers: the same as those of a local trainer."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from windlass.spec.run import Run
from windlass.train.event_log import EventLog
from windlass.train.loop import REPORT_EVERY_S, SMOOTHING
from windlass.train.machine_flops import known_peak
from windlass.train.server.updates import ServerUpdate


class NetworkProgress(Protocol):
    """The state of a network task that its events report."""

    record: EventLog

    @property
    def run(self) -> Run: ...

    @property
    def step(self) -> int: ...

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint."""

    @property
    def workers(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...


def emit_start(task: NetworkProgress) -> None:
    run, sync = task.run, task.run.job.sync
    task.record.emit(
        "started",
        parameters=run.network.parameters,
        steps=run.steps,
        device="cpu" if run.job.machine.device == "auto" else run.job.machine.device,
        threads=run.threads,
        compile=run.compile,
        layout=str(run.layout),
        workers=run.layout.world,
        servers=sync.servers,
        mode=sync.mode,
    )


class StepReporter:
    """Logs steps: every `log_every`-th to the journal, the others only to the progress display.

    A step is over when another batch of samples is committed; its figures are means over the updates since
    the previous step, weighted by their samples.
    """

    def __init__(self, task: NetworkProgress) -> None:
        self._task = task
        self._peak = known_peak(torch.device("cpu"))
        self._step_s: float | None = None
        self._reported_at = 0.0
        self._step = task.step
        self._since: list[tuple[ServerUpdate, float]] = []

    def on_update(self, update: ServerUpdate, seconds: float) -> None:
        self._since.append((update, seconds))
        if self._task.step > self._step:
            self._step = self._task.step
            self._emit_step(update)
            self._since = []

    def _emit_step(self, last: ServerUpdate) -> None:
        task, run, step = self._task, self._task.run, self._step
        updates, seconds = [update for update, _ in self._since], sum(s for _, s in self._since)
        before = seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * seconds
        kept = step % run.job.train.log_every == 0 or step in (run.steps, task.saved_step + 1)
        now = time.monotonic()
        if not kept and now - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = now
        speed, loss = run.tokens_per_step / self._step_s, mean_loss(updates)
        task.record.emit(
            "step",
            keep=kept,
            step=step,
            steps=run.steps,
            loss=round(loss, 6),
            rate=last.rate,
            gradient_norm=round(last.norm, 4),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * run.network.training_flops_per_token() / self._peak, 4),
            seconds_left=round((run.steps - step) * self._step_s, 1),
            bytes_sent=task.bytes_sent,
            staleness=max(update.stale for update in updates),
            updates=len(updates),
            workers=task.workers,
        )
        if kept:
            task.record.plot(step, train__loss=loss, train__rate=last.rate, train__tokens_per_s=speed)


def mean_loss(updates: list[ServerUpdate]) -> float:
    """Return the mean loss of some updates, weighted by their samples."""
    if len(updates) == 1:
        return updates[0].loss
    return sum(u.loss * u.positions for u in updates) / sum(u.positions for u in updates)
