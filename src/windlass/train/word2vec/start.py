"""The first stage of a run whose model starts from word2vec: one process learns, the others wait.

Input: a run. Output: vectors in its folder, from which `parallel.strategy` takes the first embedding. All
processes of the run call `prepare` together. The first of them decides whether the stage is due: it is not
once there are vectors, or a checkpoint of the model.
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
"""Several would be quicker, but their vectors never the same twice, and so no run."""


def prepare(
    run: Run, folder: Path, record: EventLog, crew: ProcessGroup, stopped: Callable[[], bool]
) -> bool:
    """See to it that the vectors are there, if the model starts from them; return False where it was stopped.

    The processes tell each other after every chunk how it stands, so that none waits long in silence.
    """
    if not starts_from_vectors(run) or not crew.share(crew.rank == 0 and is_due(run, folder))[0]:
        return True
    stage = _Stage(run, folder, record) if crew.rank == 0 else None
    while True:
        with raise_on_all_ranks(crew, f"{folder / VECTORS}: the vectors could not be learnt"):
            if stage is not None:
                stage.advance()
        told = crew.share([stage is not None and stage.finished, stopped()])
        if told[0][0]:
            return True
        if any(asked for _, asked in told):
            with raise_on_all_ranks(crew, f"{folder / VECTORS}: the vectors could not be saved"):
                if stage is not None:
                    stage.stop()
            return False


def is_due(run: Run, folder: Path) -> bool:
    """Whether vectors are to be learnt before the first step."""
    if not starts_from_vectors(run) or committed(folder / CHECKPOINTS):
        return False
    return load_manifest(StoreDir(folder / VECTORS)) is None


def starts_from_vectors(run: Run) -> bool:
    wanted = isinstance(run.shape, MlpShape) and run.job.model.mlp.start == "word2vec"
    return wanted and run.start_from is None


def plan_of(run: Run, corpus: BuiltCorpus) -> Word2VecPlan:
    asked = run.job.model.mlp
    return Word2VecPlan(
        vocabulary=run.network.vocabulary,
        width=run.network.width,
        end_token=corpus.tokenizer.end_id,
        epochs=asked.word2vec_epochs,
        seed=run.job.seed,
        options=Word2VecOptions(distance=asked.distance, negatives=asked.negatives),
    )


class _Stage:
    """The stage as the process sees it that does it."""

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
            record.tell("vectors_resumed", epoch=learner.epoch, position=learner.position)

    def advance(self) -> None:
        """Count or learn from one chunk, and tell of it."""
        learner = self._learner
        if not learner.counted:
            done = next(self._counting)
            self._record.tell_progress(Progress("counts", done, self._tokens, "tokens"))
            return
        if not learner.finished:
            stood = learner.advance()
            epochs = learner.plan.epochs
            done, total = stood.epoch * stood.total + stood.position, epochs * stood.total
            self._record.tell_progress(Progress("vectors", done, total, "tokens"))
            if stood.position == stood.total:
                self._record.tell(
                    "vectors", epoch=stood.epoch + 1, epochs=epochs, loss=round(stood.learnt.loss, 6),
                    pairs=stood.learnt.pairs, tokens_per_s=round(stood.tokens_per_s, 1),
                )  # fmt: skip
        if learner.finished:
            learner.finish(self._target)
            self.finished = True

    def stop(self) -> None:
        """Keep what was learnt; the run goes on from it."""
        if self._learner.counted:
            self._learner.save()
