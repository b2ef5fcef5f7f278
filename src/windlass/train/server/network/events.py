"""What the first server tells of a network: the same events as a trainer's, for the same listeners."""

from __future__ import annotations

import time

import torch

from windlass.train.loop import SMOOTHING, TELL_EVERY_S
from windlass.train.machine_flops import known_peak
from windlass.train.server.network.task_context import Lead
from windlass.train.server.updates import ServerUpdate


def tell_start(lead: Lead) -> None:
    run, sync = lead.run, lead.run.job.sync
    lead.record.tell(
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


class Teller:
    """Tells of steps: every `log_every`-th into the journal, the others only to draw a line from.

    A step is over when another batch's worth of samples is committed; what is told of it is that of the
    updates since the step before, each by how many samples it had.
    """

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._peak = known_peak(torch.device("cpu"))
        self._step_s: float | None = None
        self._told_at = 0.0
        self._step = lead.step
        self._since: list[tuple[ServerUpdate, float]] = []

    def tell(self, update: ServerUpdate, seconds: float) -> None:
        self._since.append((update, seconds))
        if self._lead.step > self._step:
            self._step = self._lead.step
            self._tell(update)
            self._since = []

    def _tell(self, last: ServerUpdate) -> None:
        lead, run, step = self._lead, self._lead.run, self._step
        updates, seconds = [update for update, _ in self._since], sum(s for _, s in self._since)
        before = seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * seconds
        kept = step % run.job.train.log_every == 0 or step in (run.steps, lead.saved_step + 1)
        now = time.monotonic()
        if not kept and now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        speed, loss = run.tokens_per_step / self._step_s, mean_loss(updates)
        lead.record.tell(
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
            bytes_sent=lead.bytes_sent,
            staleness=max(update.stale for update in updates),
            updates=len(updates),
            workers=lead.workers,
        )
        if kept:
            lead.record.plot(step, train__loss=loss, train__rate=last.rate, train__tokens_per_s=speed)


def mean_loss(updates: list[ServerUpdate]) -> float:
    """Return the loss of some updates, each weighed by how many samples it had."""
    if len(updates) == 1:
        return updates[0].loss
    return sum(u.loss * u.positions for u in updates) / sum(u.positions for u in updates)
