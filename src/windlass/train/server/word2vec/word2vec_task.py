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
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.task import TaskProgress
from windlass.train.server.updates import ServerUpdate
from windlass.train.server.word2vec.pair_batches import BATCHES, SIZE, PairBatches
from windlass.train.server.word2vec.word2vec_shard import VectorPart
from windlass.train.server.work_queue import Facts, FinishedWork, WorkerTask
from windlass.train.settings_file import StopRequested
from windlass.train.word2vec.learner import Word2VecLearner
from windlass.train.word2vec.start import THREADS, plan_of


class VectorCourse:
    """What the first server decides about vectors."""

    size, squared = SIZE, False

    def __init__(self, run: Run, folder: Path, record: EventLog, chief: PrimaryServer) -> None:
        self._run, self._folder, self.record, self._chief = run, folder, record, chief
        corpus = load_corpus(Path(run.corpus))
        self._learner = Word2VecLearner(
            corpus.train, plan_of(run, corpus), folder, digest=corpus.digest, threads=THREADS
        )
        self._grid = PairBatches(corpus.train.tokens, self._learner.plan.epochs)
        part = chief.shard.part
        assert isinstance(part, VectorPart)
        part.write = self._write
        self._stop_asked = StopRequested(folder)
        self._saved_at = self._stands_at = 0
        self._stale: Counter[int] = Counter()
        self._told = (0, 0)
        """Bytes sent and received that were told of."""

    def begin(self, base: State, updates: Sequence[ServerUpdate], _passed_over: Sequence[str]) -> None:
        self._saved_at = self._stands_at = base.step
        learner = self._learner
        for update in updates:
            self._include(update)
        if base.step or updates:
            epoch, position = self._grid.standing(self._chief.step)
            self.record.tell("vectors_resumed", epoch=epoch, position=position, updates=len(updates))
        if not learner.counted:
            for done in learner.counting():
                self.record.tell_progress(Progress("counts", done, self._grid.tokens, "tokens"))

    @property
    def sync(self) -> Sync:
        return self._run.job.sync

    @property
    def over(self) -> bool:
        return self._chief.step >= self._grid.steps and self._saved_at == self._chief.step

    @property
    def waiting(self) -> bool:
        return self._stop_asked()

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

    def draw_up(self, done: FinishedWork, standing: TaskProgress) -> ServerUpdate:
        batch, part, parts = done.piece
        share = share_of(batch * SIZE, SIZE, part, parts)
        seen = {key: sum(fact[key] for fact in done.facts) for key in ("pairs", "loss_sum", "loss_pairs")}
        return ServerUpdate(
            number=standing.version + 1,
            batch=batch,
            part=part,
            parts=parts,
            tasks=done.tasks,
            first=share.start,
            until=share.stop,
            stale=standing.version - min(fact["version"] for fact in done.facts),
            train_s=standing.train_s,
            more={**seen, "rows": sum(fact["rows"] for fact in done.facts)},
        )

    def entered(self, update: ServerUpdate, _told: Sequence[dict[str, Any]], _seconds: float) -> None:
        self._include(update)
        step, tokens = self._chief.step, self._grid.tokens
        epoch, position = self._grid.standing(step)
        self.record.tell_progress(
            Progress("vectors", epoch * tokens + position, self._grid.epochs * tokens, "tokens")
        )

    def border(self, stopped: Callable[[], bool]) -> bool:
        if stopped() or self._stop_asked():
            return False
        if self._chief.step % self._grid.steps_of_a_pass == 0 and self._chief.step > self._saved_at:
            self._save()
        return True

    def stop(self, *, left: int) -> None:
        if not left and self._chief.step > self._saved_at:
            self._save()
        self.record.tell("stopped", step=0, steps=self._run.steps)

    def finish(self) -> None:
        self._learner.finish(self._folder / VECTORS)

    def end(self) -> None:
        """Everything is saved where it must be."""

    def _include(self, update: ServerUpdate) -> None:
        self._stale[update.stale] += 1
        learnt = Learnt(update.more["pairs"], update.more["loss_sum"], update.more["loss_pairs"])
        self._learner.include(learnt, 0.0)

    def _save(self) -> None:
        chief = self._chief
        chief.save(State(chief.step, chief.samples, chief.train_s))
        self._saved_at = chief.step

    def _write(self, state: State, inputs_VD: Tensor, outputs_VD: Tensor) -> None:
        """Write a checkpoint with what all servers hold; twice, if one of them dies meanwhile."""
        learner = self._learner
        learner.take(inputs_VD.numpy(), outputs_VD.numpy())
        if state.step > self._stands_at:
            self._stands_at = state.step
            epoch, position = self._grid.standing(state.step)
            learner.include(Learnt(), state.train_s - learner.seconds)
            if position == self._grid.tokens:
                self._tell_pass(epoch, learner.learnt)
            learner.stand_at(epoch, position)
        learner.save()

    def _tell_pass(self, epoch: int, learnt: Learnt) -> None:
        if self.record.last("vectors").get("epoch", 0) > epoch:
            return  # by a first server that died before it had saved
        chief, updates = self._chief, self._stale.total()
        sent, received = chief.bytes_sent - self._told[0], chief.bytes_received - self._told[1]
        self._told = chief.bytes_sent, chief.bytes_received
        self.record.tell(
            "vectors",
            epoch=epoch + 1,
            epochs=self._grid.epochs,
            loss=round(learnt.loss, 6),
            pairs=learnt.pairs,
            tokens_per_s=round(self._grid.tokens * (epoch + 1) / max(chief.train_s, 1e-9), 1),
            updates=updates,
            bytes_sent=sent,
            bytes_received=received,
            staleness={str(stale): count for stale, count in sorted(self._stale.items())},
        )
        self._stale.clear()
