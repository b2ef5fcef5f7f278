"""The word2vec stage of a run on servers: passes over the text, a checkpoint after each, then vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from windlass.corpus.batches import share_of
from windlass.corpus.corpus_dir import load_corpus
from windlass.models.word2vec import Learnt
from windlass.models.word2vec_files import VECTORS
from windlass.spec.protocol.progress import Progress
from windlass.spec.run import Run
from windlass.spec.sync import Sync
from windlass.train.checkpoint.async_save import State
from windlass.train.event_log import EventLog
from windlass.train.runtime_settings import StopRequested
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.task import TaskProgress
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.word2vec.pair_batches import BATCHES, SIZE, PairBatches
from windlass.train.server.word2vec.word2vec_shard import Word2VecShardState
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask
from windlass.train.word2vec.learner import Word2VecLearner
from windlass.train.word2vec.start import THREADS, plan_of


class Word2VecTask:
    """The primary's side of a word2vec stage."""

    size, needs_norm = SIZE, False

    def __init__(self, run: Run, folder: Path, record: EventLog, primary: PrimaryServer) -> None:
        self._run, self._folder, self.record, self._primary = run, folder, record, primary
        corpus = load_corpus(Path(run.corpus))
        self._learner = Word2VecLearner(
            corpus.train, plan_of(run, corpus), folder, digest=corpus.digest, threads=THREADS
        )
        self._grid = PairBatches(corpus.train.tokens, self._learner.plan.epochs)
        part = primary.shard.part
        assert isinstance(part, Word2VecShardState)
        part.write = self._write
        self._stop_requested = StopRequested(folder)
        self._saved_at = self._position_step = 0
        self._stale: Counter[int] = Counter()
        self._reported_bytes = (0, 0)
        """Bytes sent and received at the last event."""

    def begin(self, base: State, updates: Sequence[ServerUpdate], _skipped: Sequence[str]) -> None:
        self._saved_at = self._position_step = base.step
        learner = self._learner
        for update in updates:
            self._include(update)
        if base.step or updates:
            epoch, position = self._grid.position_at(self._primary.step)
            self.record.emit("vectors_resumed", epoch=epoch, position=position, updates=len(updates))
        if not learner.counted:
            for done in learner.counting():
                self.record.emit_progress(Progress("counts", done, self._grid.tokens, "tokens"))

    @property
    def sync(self) -> Sync:
        return self._run.job.sync

    @property
    def over(self) -> bool:
        return self._primary.step >= self._grid.steps and self._saved_at == self._primary.step

    @property
    def waiting(self) -> bool:
        return self._stop_requested()

    def limit(self, step: int) -> int:
        return self._grid.steps_of_a_pass * (step // self._grid.steps_of_a_pass + 1)

    def aligned(self, step: int) -> int:
        return -(-step // BATCHES) * BATCHES

    def parts(self, workers: int) -> int:
        return workers

    def order(self, task: WorkerTask) -> Facts:
        place = self._grid.place(share_of(task.batch * SIZE, SIZE, task.part, task.parts))
        rate = float(self._learner.rates_at(place.epoch, np.array([place.start]))[0])
        return {
            "epoch": place.epoch,
            "start": place.start,
            "stop": place.stop,
            "from": place.first,
            "until": place.until,
            "rate": rate,
        }

    def build_update(self, done: FinishedWork, progress: TaskProgress) -> ServerUpdate:
        batch, part, parts = done.piece
        share = share_of(batch * SIZE, SIZE, part, parts)
        seen = {key: sum(fact[key] for fact in done.facts) for key in ("pairs", "loss_sum", "loss_pairs")}
        return ServerUpdate(
            number=progress.version + 1,
            batch=batch,
            part=part,
            parts=parts,
            tasks=done.tasks,
            first=share.start,
            until=share.stop,
            stale=progress.version - min(fact["version"] for fact in done.facts),
            train_s=progress.train_s,
            more={**seen, "rows": sum(fact["rows"] for fact in done.facts)},
        )

    def on_committed(self, update: ServerUpdate, _replies: Sequence[dict[str, Any]], _seconds: float) -> None:
        self._include(update)
        step, tokens = self._primary.step, self._grid.tokens
        epoch, position = self._grid.position_at(step)
        self.record.emit_progress(
            Progress("vectors", epoch * tokens + position, self._grid.epochs * tokens, "tokens")
        )

    def at_boundary(self, stopped: Callable[[], bool]) -> bool:
        if stopped() or self._stop_requested():
            return False
        if self._primary.step % self._grid.steps_of_a_pass == 0 and self._primary.step > self._saved_at:
            self._save()
        return True

    def stop(self, *, left: int) -> None:
        if not left and self._primary.step > self._saved_at:
            self._save()
        self.record.emit("stopped", step=0, steps=self._run.steps)

    def finish(self) -> None:
        self._learner.finish(self._folder / VECTORS)

    def end(self) -> None:
        """Nothing to close."""

    def _include(self, update: ServerUpdate) -> None:
        self._stale[update.stale] += 1
        learnt = Learnt(update.more["pairs"], update.more["loss_sum"], update.more["loss_pairs"])
        self._learner.include(learnt, 0.0)

    def _save(self) -> None:
        primary = self._primary
        primary.save(State(primary.step, primary.samples, primary.train_s))
        self._saved_at = primary.step

    def _write(self, state: State, inputs_VD: Tensor, outputs_VD: Tensor) -> None:
        """Write a checkpoint of all servers' values; called again if a server dies meanwhile."""
        learner = self._learner
        learner.take(inputs_VD.numpy(), outputs_VD.numpy())
        if state.step > self._position_step:
            self._position_step = state.step
            epoch, position = self._grid.position_at(state.step)
            learner.include(Learnt(), state.train_s - learner.seconds)
            if position == self._grid.tokens:
                self._emit_pass(epoch, learner.learnt)
            learner.set_position(epoch, position)
        learner.save()

    def _emit_pass(self, epoch: int, learnt: Learnt) -> None:
        if self.record.last("vectors").get("epoch", 0) > epoch:
            return  # logged by a primary that died before it had saved
        primary, updates = self._primary, self._stale.total()
        sent, received = (
            primary.bytes_sent - self._reported_bytes[0],
            primary.bytes_received - self._reported_bytes[1],
        )
        self._reported_bytes = primary.bytes_sent, primary.bytes_received
        self.record.emit(
            "vectors",
            epoch=epoch + 1,
            epochs=self._grid.epochs,
            loss=round(learnt.loss, 6),
            pairs=learnt.pairs,
            tokens_per_s=round(self._grid.tokens * (epoch + 1) / max(primary.train_s, 1e-9), 1),
            updates=updates,
            bytes_sent=sent,
            bytes_received=received,
            staleness={str(stale): count for stale, count in sorted(self._stale.items())},
        )
        self._stale.clear()
