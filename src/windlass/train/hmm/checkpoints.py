"""Checkpoints of a hidden Markov run: the probabilities after an iteration, and the run's progress.

They use the same directories and manifests as the checkpoints of other runs (docs/formats/hmm.md). All
workers hold the same probabilities, so only rank 0 writes; rank 0 also reads and broadcasts.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windlass.models.hmm.weights import HmmWeights, read_weights, write_weights
from windlass.spec.errors import Damaged, WindlassError
from windlass.spec.job import Job
from windlass.spec.run import CHECKPOINTS
from windlass.store.checkpoint_retention import retained
from windlass.store.manifest import DirectoryWriter, load_manifest, read_verified, verify
from windlass.store.store_dir import StoreDir
from windlass.store.uploads import Outcome, Uploads
from windlass.train.checkpoint.async_save import STATE, committed
from windlass.train.checkpoint.checkpointer import Copies, note_sent, settle_store, step_of
from windlass.train.checkpoint.verifier import CheckpointVerifier
from windlass.train.event_log import EventLog

KIND = "hmm checkpoint"
CLOSE_S = 30.0


@dataclass(frozen=True)
class Progressed:
    """The progress of a run."""

    step: int
    train_s: float = 0.0
    objective: float | None = None
    """Log-likelihood plus log prior before the last iteration, in nats."""
    converged: bool = False
    """True if the last iteration gained too little, or the time limit leaves no room for another."""


class Saves:
    """Writes, retains, uploads and loads the checkpoints of one run."""

    def __init__(self, folder: Path, job: Job, record: EventLog) -> None:
        self._folder, self._job, self._record = folder, job, record
        self._uploads: Uploads | None = None
        self._checks = CheckpointVerifier(folder, job.checkpoint.verify_every, record.emit)

    def save(self, weights: HmmWeights, state: Progressed) -> None:
        """Write a checkpoint, log the event and delete the oldest. Only rank 0 calls this."""
        began = time.perf_counter()
        target = self._folder / CHECKPOINTS / f"step-{state.step:08d}"
        writer = DirectoryWriter(StoreDir(target))
        write_weights(writer, weights)
        writer.write(STATE, (json.dumps(asdict(state)) + "\n").encode())
        writer.commit({"kind": KIND, "step": state.step})
        seconds = round(time.perf_counter() - began, 3)
        self._record.emit("checkpoint", step=state.step, tier="local", seconds=seconds, durable=True)
        self._forget()
        if self._job.checkpoint.store is not None:
            self._send(target, self._job.checkpoint.store)
        self._checks.offer(state.step)

    def newest(self) -> tuple[HmmWeights, Progressed] | None:
        """Load the newest intact checkpoint from local disk or, failing that, from the store; None if
        there is none."""
        for path in reversed(committed(self._folder / CHECKPOINTS)):
            try:
                return load_checkpoint(path)
            except (Damaged, OSError) as damage:
                self._record.emit("warning", message=f"checkpoint skipped: {damage}")
        return self._fetched()

    def close(self) -> None:
        """Wait up to CLOSE_S for uploads, and as long for verification."""
        if self._uploads is not None and not self._uploads.close(CLOSE_S):
            names = ", ".join(sorted(self._uploads.pending))
            self._record.emit(
                "warning", message=f"{names}: not uploaded to {self._uploads.url} before the end"
            )
        self._checks.close(CLOSE_S)

    def _fetched(self) -> tuple[HmmWeights, Progressed] | None:
        copies = Copies.of(self._folder)
        if copies is None:
            return None
        for name in sorted(copies.names(), reverse=True):
            target = self._folder / CHECKPOINTS / name
            try:
                copies.fetch(name, target)
                return load_checkpoint(target)
            except WindlassError as trouble:
                self._record.emit("warning", message=f"copy skipped: {trouble.message}")
        return None

    def _forget(self) -> None:
        config, train = self._job.checkpoint, self._job.train
        found = {step_of(path.name): path for path in committed(self._folder / CHECKPOINTS)}
        every = config.keep_every if config.store is None else None
        kept = retained(found, keep=config.keep or train.checkpoint_keep, keep_every=every)
        pending = [*self._checks.in_progress, *(self._uploads.pending if self._uploads is not None else ())]
        for step, path in found.items():
            if step not in kept and path.name not in pending:
                DirectoryWriter(
                    StoreDir(path)
                )  # removes the manifest first: a half-removed directory is no checkpoint
                StoreDir(path).remove()

    def _send(self, path: Path, store: str) -> None:
        try:
            if self._uploads is None:
                url = settle_store(self._folder, store)
                self._uploads = Uploads(url, retain=self._retain, tell=self._emit_upload)
            self._uploads.offer(path)
        except WindlassError as failure:
            self._record.emit(
                "checkpoint_failed", step=step_of(path.name), tier="store", message=failure.message
            )

    def _retain(self, names: list[str]) -> list[str]:
        config = self._job.checkpoint
        steps = {step_of(name): name for name in names}
        return [steps[step] for step in retained(steps, keep=config.store_keep, keep_every=config.keep_every)]

    def _emit_upload(self, name: str, outcome: Outcome, facts: dict[str, Any]) -> None:
        event = "checkpoint" if outcome == "sent" else "checkpoint_failed"
        if outcome == "sent":
            note_sent(self._folder, name)
        self._record.emit(event, step=step_of(name), tier="store", **facts)


def load_checkpoint(path: Path) -> tuple[HmmWeights, Progressed]:
    """Load a checkpoint, verifying every byte."""
    place = StoreDir(path)
    manifest = load_manifest(place)
    if manifest is None or manifest.meta.get("kind") != KIND:
        raise Damaged(f"{path} is not a checkpoint of a hidden Markov run")
    verify(place, manifest)
    state = Progressed(**json.loads(read_verified(place, STATE, manifest)))
    # Copies: the tables are mapped from a file that retention deletes later.
    tables = read_weights(path).tables.values()
    return HmmWeights(*(np.array(table, np.float64) for table in tables)), state
