"""What the first server tells of a run: the same events as a trainer's, for the same listeners."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from windlass.spec.elastic import WORKERS
from windlass.train.loop import SMOOTHING, TELL_EVERY_S
from windlass.train.peak import known_peak
from windlass.train.server.lead import Lead
from windlass.train.server.updates import Update


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


def wanted_workers(folder: Path) -> int | None:
    """Return how many workers the run was last asked to have; None where nobody said."""
    try:
        return int(json.loads((folder / WORKERS).read_bytes())["workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Teller:
    """Tells of updates: every `log_every`-th into the journal, the others only to draw a line from."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._peak = known_peak(torch.device("cpu"))
        self._step_s: float | None = None
        self._told_at = 0.0

    def tell(self, update: Update, seconds: float) -> None:
        lead, run, step = self._lead, self._lead.run, update.number
        before = seconds if self._step_s is None else self._step_s
        self._step_s = SMOOTHING * before + (1 - SMOOTHING) * seconds
        kept = step % run.job.train.log_every == 0 or step in (run.steps, lead.saved_step + 1)
        now = time.monotonic()
        if not kept and now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        speed = run.tokens_per_step / self._step_s
        lead.record.tell(
            "step",
            keep=kept,
            step=step,
            steps=run.steps,
            loss=round(update.loss, 6),
            rate=update.rate,
            gradient_norm=round(update.norm, 4),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * run.network.training_flops_per_token() / self._peak, 4),
            seconds_left=round((run.steps - step) * self._step_s, 1),
            bytes_sent=lead.bytes_sent,
            staleness=update.stale,
            workers=lead.workers,
        )
        if kept:
            lead.record.plot(
                step, train__loss=update.loss, train__rate=update.rate, train__tokens_per_s=speed
            )
