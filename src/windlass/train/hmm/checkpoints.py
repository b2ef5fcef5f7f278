"""The checkpoints of a hidden Markov run: its probabilities after an iteration, and how far it has come.

They lie where those of other runs lie and are committed by their manifest alike (docs/formats/hmm.md). All
workers hold the same probabilities, so rank 0 writes them and everybody reads them.
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
from windlass.train.checkpoint.manager import Copies, note_sent, settle_store, step_of
from windlass.train.checkpoint.verifier import CheckpointVerifier
from windlass.train.event_log import EventLog

KIND = "hmm checkpoint"
CLOSE_S = 30.0


@dataclass(frozen=True)
class Progressed:
    """How far a run has come."""

    step: int
    train_s: float = 0.0
    objective: float | None = None
    """What was reached before the last iteration: log-likelihood and prior, in nats."""
    converged: bool = False
    """Whether the last iteration gained less than is worth another."""


class Saves:
    """Writes, keeps, sends and finds the checkpoints of one run."""

    def __init__(self, folder: Path, job: Job, record: EventLog) -> None:
        self._folder, self._job, self._record = folder, job, record
        self._uploads: Uploads | None = None
        self._checks = CheckpointVerifier(folder, job.checkpoint.verify_every, record.tell)

    def save(self, weights: HmmWeights, state: Progressed) -> None:
        """Write a checkpoint, tell of it, and forget the oldest. Only rank 0 does."""
        began = time.perf_counter()
        target = self._folder / CHECKPOINTS / f"step-{state.step:08d}"
        writer = DirectoryWriter(StoreDir(target))
        write_weights(writer, weights)
        writer.write(STATE, (json.dumps(asdict(state)) + "\n").encode())
        writer.commit({"kind": KIND, "step": state.step})
        seconds = round(time.perf_counter() - began, 3)
        self._record.tell("checkpoint", step=state.step, tier="local", seconds=seconds, durable=True)
        self._forget()
        if self._job.checkpoint.store is not None:
            self._send(target, self._job.checkpoint.store)
        self._checks.offer(state.step)

    def newest(self) -> tuple[HmmWeights, Progressed] | None:
        """Load the newest whole checkpoint of this machine, or of the store; None where there is none."""
        for path in reversed(committed(self._folder / CHECKPOINTS)):
            try:
                return load_checkpoint(path)
            except (Damaged, OSError) as damage:
                self._record.tell("warning", message=f"checkpoint passed over: {damage}")
        return self._fetched()

    def close(self) -> None:
        """Give what is being sent and verified some time to finish."""
        if self._uploads is not None and not self._uploads.close(CLOSE_S):
            names = ", ".join(sorted(self._uploads.pending))
            self._record.tell("warning", message=f"{names}: not sent to {self._uploads.url} before the end")
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
                self._record.tell("warning", message=f"copy passed over: {trouble.message}")
        return None

    def _forget(self) -> None:
        asked, train = self._job.checkpoint, self._job.train
        found = {step_of(path.name): path for path in committed(self._folder / CHECKPOINTS)}
        every = asked.keep_every if asked.store is None else None
        kept = retained(found, keep=asked.keep or train.checkpoint_keep, keep_every=every)
        pending = [*self._checks.looking_at, *(self._uploads.pending if self._uploads is not None else ())]
        for step, path in found.items():
            if step not in kept and path.name not in pending:
                DirectoryWriter(StoreDir(path))  # its manifest first: what is half removed is no checkpoint
                StoreDir(path).remove()

    def _send(self, path: Path, store: str) -> None:
        try:
            if self._uploads is None:
                url = settle_store(self._folder, store)
                self._uploads = Uploads(url, retain=self._retain, tell=self._tell_upload)
            self._uploads.offer(path)
        except WindlassError as failure:
            self._record.tell(
                "checkpoint_failed", step=step_of(path.name), tier="store", message=failure.message
            )

    def _retain(self, names: list[str]) -> list[str]:
        asked = self._job.checkpoint
        steps = {step_of(name): name for name in names}
        return [steps[step] for step in retained(steps, keep=asked.store_keep, keep_every=asked.keep_every)]

    def _tell_upload(self, name: str, outcome: Outcome, facts: dict[str, Any]) -> None:
        event = "checkpoint" if outcome == "sent" else "checkpoint_failed"
        if outcome == "sent":
            note_sent(self._folder, name)
        self._record.tell(event, step=step_of(name), tier="store", **facts)


def load_checkpoint(path: Path) -> tuple[HmmWeights, Progressed]:
    """Load a checkpoint, every byte checked."""
    place = StoreDir(path)
    manifest = load_manifest(place)
    if manifest is None or manifest.meta.get("kind") != KIND:
        raise Damaged(f"{path}: is not a checkpoint of a hidden Markov run")
    verify(place, manifest)
    state = Progressed(**json.loads(read_verified(place, STATE, manifest)))
    # Copies: the tables lie in a file that is forgotten in time.
    tables = read_weights(path).tables.values()
    return HmmWeights(*(np.array(table, np.float64) for table in tables)), state
