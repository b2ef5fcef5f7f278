"""The first stage of a run whose model starts from word2vec: rank 0 trains vectors, the other ranks wait.

Input: a run. Output: vectors in its folder, from which `parallel.strategy` takes the initial embedding. All
processes of the run call `prepare` together. Rank 0 decides whether the stage is due: it is not once there
are vectors, or a checkpoint of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.models.word2vec import Word2VecOptions
from windlass.models.word2vec_files import VECTORS
from windlass.parallel.process_group import ProcessGroup
from windlass.spec.protocol.progress import Progress
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.shape import MlpShape
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.collective_errors import raise_on_all_ranks
from windlass.train.event_log import EventLog
from windlass.train.word2vec.learner import Word2VecLearner, Word2VecPlan

THREADS = 1
"""Several threads would be quicker, but not deterministic."""


def prepare(
    run: Run, folder: Path, record: EventLog, group: ProcessGroup, stopped: Callable[[], bool]
) -> bool:
    """Train the vectors if the model starts from them; return False if stopped.

    The processes synchronise after every chunk, so that none waits longer than a collective's timeout.
    """
    if not starts_from_vectors(run) or not group.all_gather_json(group.rank == 0 and is_due(run, folder))[0]:
        return True
    stage = _Stage(run, folder, record) if group.rank == 0 else None
    while True:
        with raise_on_all_ranks(group, f"{folder / VECTORS}: the vectors could not be learnt"):
            if stage is not None:
                stage.advance()
        states = group.all_gather_json([stage is not None and stage.finished, stopped()])
        if states[0][0]:
            return True
        if any(stop for _, stop in states):
            with raise_on_all_ranks(group, f"{folder / VECTORS}: the vectors could not be saved"):
                if stage is not None:
                    stage.stop()
            return False


def is_due(run: Run, folder: Path) -> bool:
    """Return True if vectors must be trained before the first step."""
    if not starts_from_vectors(run) or committed(folder / CHECKPOINTS):
        return False
    return load_manifest(StoreDir(folder / VECTORS)) is None


def starts_from_vectors(run: Run) -> bool:
    wanted = isinstance(run.shape, MlpShape) and run.job.model.mlp.start == "word2vec"
    return wanted and run.start_from is None


def plan_of(run: Run, corpus: BuiltCorpus) -> Word2VecPlan:
    config = run.job.model.mlp
    return Word2VecPlan(
        vocabulary=run.network.vocabulary,
        width=run.network.width,
        end_token=corpus.tokenizer.end_id,
        epochs=config.word2vec_epochs,
        seed=run.job.seed,
        options=Word2VecOptions(distance=config.distance, negatives=config.negatives),
    )


class _Stage:
    """The stage on rank 0."""

    def __init__(self, run: Run, folder: Path, record: EventLog) -> None:
        corpus = load_corpus(Path(run.corpus))
        self._record, self._target = record, folder / VECTORS
        self._learner = Word2VecLearner(
            corpus.train, plan_of(run, corpus), folder, digest=corpus.digest, threads=THREADS
        )
        self._counting = self._learner.counting()
        self._tokens = corpus.train.tokens
        self.finished = False
        learner = self._learner
        if learner.epoch or learner.position:
            record.emit("vectors_resumed", epoch=learner.epoch, position=learner.position)

    def advance(self) -> None:
        """Count or train on one chunk, and log progress."""
        learner = self._learner
        if not learner.counted:
            done = next(self._counting)
            self._record.emit_progress(Progress("counts", done, self._tokens, "tokens"))
            return
        if not learner.finished:
            progress = learner.advance()
            epochs = learner.plan.epochs
            done, total = progress.epoch * progress.total + progress.position, epochs * progress.total
            self._record.emit_progress(Progress("vectors", done, total, "tokens"))
            if progress.position == progress.total:
                self._record.emit(
                    "vectors", epoch=progress.epoch + 1, epochs=epochs, loss=round(progress.learnt.loss, 6),
                    pairs=progress.learnt.pairs, tokens_per_s=round(progress.tokens_per_s, 1),
                )  # fmt: skip
        if learner.finished:
            learner.finish(self._target)
            self.finished = True

    def stop(self) -> None:
        """Save a checkpoint, from which the run resumes."""
        if self._learner.counted:
            self._learner.save()
