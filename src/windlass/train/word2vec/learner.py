"""Trains vectors of tokens on the text of a corpus, a chunk at a time.

Input: a part of a corpus. Output: a directory of vectors (docs/formats/word2vec.md). Memory: both matrices,
and one chunk of tokens. A checkpoint holds the pass and the position in it; random numbers depend on the
position alone, so a learner with one thread that resumes from a checkpoint ends with the bits of one that was
never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.shards import TokenPart
from windlass.models.word2vec import (
    Learnt,
    Sampler,
    Word2VecOptions,
    first_matrices,
    matrices_of,
    pass_key,
    run,
)
from windlass.models.word2vec_files import TokenVectors, load_vectors, save_vectors
from windlass.spec.errors import BadInput
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir

CHUNK_TOKENS = 1 << 20
"""Tokens processed between two checks for a stop request: a few seconds at most."""
BLOCK_TOKENS = 10_000
"""No pair crosses the boundary of two blocks; a thread takes one block at a time."""
RATE, MIN_RATE = 0.05, 1e-4
"""The learning rate decays linearly from RATE to MIN_RATE of it."""
Floats = NDArray[np.float32]

PASSES = "word2vec-passes"
"""Directory of the checkpoints in a run's folder, until the vectors are finished."""


@dataclass(frozen=True)
class Word2VecPlan:
    """Everything but the text that determines the vectors; with one thread, to the last bit."""

    vocabulary: int
    width: int
    end_token: int
    epochs: int
    seed: int
    options: Word2VecOptions
    rate: float = RATE


@dataclass(frozen=True)
class Word2VecProgress:
    """Progress after a chunk."""

    epoch: int
    position: int
    total: int
    learnt: Learnt
    """Totals of the pass so far."""
    tokens_per_s: float


class Word2VecLearner:
    """Trains the vectors of one run; resumes from the newest checkpoint."""

    def __init__(
        self, part: TokenPart, plan: Word2VecPlan, folder: Path, *, digest: str, threads: int
    ) -> None:
        self.plan, self.epoch, self.position = plan, 0, 0
        self._part, self._passes, self._threads = part, folder / PASSES, threads
        self._digest = digest
        self._seconds, self._losses = 0.0, list[float]()
        self._learnt = Learnt()
        self._counts_V: NDArray[np.int64] | None = None
        self._matrices = first_matrices(plan.vocabulary, plan.width, plan.seed)
        self._resume()

    @property
    def finished(self) -> bool:
        return self.epoch >= self.plan.epochs

    def advance(self) -> Word2VecProgress:
        """Train on one more chunk; save a checkpoint at the end of a pass."""
        sampler = self.sampler
        stop = min((self.position // CHUNK_TOKENS + 1) * CHUNK_TOKENS, self._part.tokens)
        tokens = np.ascontiguousarray(self._part.read(self.position, stop), np.int32)
        key, begin = pass_key(self.plan.seed, self.epoch), time.perf_counter()
        more = run(
            sampler, self._matrices, key, tokens, self.position,
            block=BLOCK_TOKENS, rates=self._rates(len(tokens)), threads=self._threads,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        self._seconds += seconds
        self._learnt.include(more)
        progress = Word2VecProgress(self.epoch, stop, self._part.tokens, self._learnt, len(tokens) / seconds)
        self.set_position(self.epoch, stop)
        if self.position == 0:
            self.save()
        return progress

    def set_position(self, epoch: int, position: int) -> None:
        """Set the position; at the end of a pass, record its loss and begin the next one."""
        self.epoch, self.position = epoch, position
        if position == self._part.tokens:
            self._losses.append(round(self._learnt.loss, 6))
            self.epoch, self.position, self._learnt = epoch + 1, 0, Learnt()

    def include(self, more: Learnt, seconds: float) -> None:
        """Add the totals and the seconds of other workers."""
        self._learnt.include(more)
        self._seconds += seconds

    def take(self, inputs_VD: Floats, outputs_VD: Floats) -> None:
        """Replace the vectors by those of the servers."""
        self._matrices = matrices_of(inputs_VD, outputs_VD)

    def counting(self) -> Iterator[int]:
        """Count the tokens of the text in chunks; yield the number counted so far."""
        counts_V = np.zeros(self.plan.vocabulary, np.int64)
        for start in range(0, self._part.tokens, CHUNK_TOKENS):
            stop = min(start + CHUNK_TOKENS, self._part.tokens)
            counts_V += np.bincount(self._part.read(start, stop), minlength=self.plan.vocabulary)
            if stop == self._part.tokens:
                self._counts_V = counts_V
            yield stop

    @property
    def counted(self) -> bool:
        return self._counts_V is not None

    def save(self) -> None:
        """Write a checkpoint, then remove older ones."""
        name = f"pass-{self.epoch:04d}-{self.position:012d}"
        save_vectors(self._passes / name, self._vectors())
        for other in self._passes.iterdir():
            if other.name != name:
                StoreDir(other).remove()

    def finish(self, target: Path) -> TokenVectors:
        """Write the vectors and remove the checkpoints."""
        vectors = self._vectors()
        save_vectors(target, vectors)
        StoreDir(self._passes).remove()
        return vectors

    @property
    def learnt(self) -> Learnt:
        """Totals of the pass so far."""
        return self._learnt

    @property
    def seconds(self) -> float:
        return self._seconds

    @cached_property
    def sampler(self) -> Sampler:
        return Sampler(self._counted(), self.plan.end_token, self.plan.options)

    def _counted(self) -> NDArray[np.int64]:
        if self._counts_V is None:
            for _ in self.counting():
                pass
        assert self._counts_V is not None
        return self._counts_V

    def _rates(self, tokens: int) -> NDArray[np.float32]:
        """Return the rate of each block of the next chunk."""
        starts = self.position + BLOCK_TOKENS * np.arange(-(-tokens // BLOCK_TOKENS))
        return self.rates_at(self.epoch, starts)

    def rates_at(self, epoch: int, starts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rate of the blocks that begin at `starts`: linear over all passes, by position alone."""
        done = (epoch * self._part.tokens + starts) / (self.plan.epochs * self._part.tokens)
        return (self.plan.rate * np.maximum(1 - done, MIN_RATE)).astype(np.float32)

    def _vectors(self) -> TokenVectors:
        m, width = self._matrices, self.plan.width
        metadata = {
            **self._settings,
            "epoch": self.epoch,
            "position": self.position,
            "learnt": asdict(self._learnt),
            "losses": self._losses,
            "seconds": round(self._seconds, 3),
        }
        return TokenVectors(m.inputs_VS[:, :width], m.outputs_VS[:, :width], self._counted(), metadata)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"corpus": self._digest, "tokens": self._part.tokens, "plan": asdict(self.plan)}

    def _resume(self) -> None:
        """Load the newest complete checkpoint, if there is one."""
        found = newest_pass(self._passes.parent)
        if found is None:
            return
        path, vectors = found
        metadata = vectors.metadata
        if any(metadata.get(key) != value for key, value in self._settings.items()):
            raise BadInput(
                f"{path} was trained on another text or with other settings",
                hint=f"remove {self._passes} to start over",
            )
        self._matrices = matrices_of(vectors.inputs_VD, vectors.outputs_VD)
        self._counts_V = vectors.counts_V
        self.epoch, self.position = int(metadata["epoch"]), int(metadata["position"])
        self._learnt, self._losses = Learnt(**metadata["learnt"]), list(metadata["losses"])
        self._seconds = float(metadata["seconds"])


def newest_pass(folder: Path) -> tuple[Path, TokenVectors] | None:
    """Load the newest complete checkpoint in a run's folder; None if there is none."""
    passes = folder / PASSES
    kept = sorted(passes.iterdir()) if passes.is_dir() else []
    whole = [path for path in kept if load_manifest(StoreDir(path)) is not None]
    vectors = load_vectors(whole[-1]) if whole else None
    return None if vectors is None else (whole[-1], vectors)


def blocks_of(tokens: int) -> list[range]:
    """Return the blocks of one pass, as `Word2VecLearner.advance` takes them: no block crosses two chunks."""
    return [
        range(start, min(start + BLOCK_TOKENS, until))
        for begin in range(0, tokens, CHUNK_TOKENS)
        for until in (min(begin + CHUNK_TOKENS, tokens),)
        for start in range(begin, until, BLOCK_TOKENS)
    ]
