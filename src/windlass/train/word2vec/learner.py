"""Learns vectors of tokens from the text of a corpus, a chunk at a time.

Input: a part of a corpus. Output: a directory of vectors (docs/formats/word2vec.md). Memory: both matrices,
and one chunk of tokens. A checkpoint says the pass and the position in it; every random number is looked up
by position, so who goes on from it with one thread ends with the bits of who was never stopped.
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
"""Read and learnt at once: a few seconds at most between two looks at whether to stop."""
BLOCK_TOKENS = 10_000
"""No pair crosses the border of two blocks; a thread takes one at a time."""
RATE, MIN_RATE = 0.05, 1e-4
"""The first rate falls on a line to this share of it."""
Floats = NDArray[np.float32]

PASSES = "word2vec-passes"
"""Where a run keeps checkpoints until the vectors are finished, in its folder."""


@dataclass(frozen=True)
class Word2VecPlan:
    """All that decides the vectors, beside the text; with one thread, to the last bit."""

    vocabulary: int
    width: int
    end_token: int
    epochs: int
    seed: int
    options: Word2VecOptions
    rate: float = RATE


@dataclass(frozen=True)
class Stood:
    """How far learning has come."""

    epoch: int
    position: int
    total: int
    learnt: Learnt
    """Of the pass so far."""
    tokens_per_s: float


class Word2VecLearner:
    """One learning of vectors, from where it was left."""

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
        self._go_on()

    @property
    def finished(self) -> bool:
        return self.epoch >= self.plan.epochs

    def advance(self) -> Stood:
        """Learn from one more chunk; a pass that ends is saved."""
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
        stood = Stood(self.epoch, stop, self._part.tokens, self._learnt, len(tokens) / seconds)
        self.stand_at(self.epoch, stop)
        if self.position == 0:
            self.save()
        return stood

    def stand_at(self, epoch: int, position: int) -> None:
        """Be so far; a pass that has come to its end is told of, and the next one begins."""
        self.epoch, self.position = epoch, position
        if position == self._part.tokens:
            self._losses.append(round(self._learnt.loss, 6))
            self.epoch, self.position, self._learnt = epoch + 1, 0, Learnt()

    def include(self, more: Learnt, seconds: float) -> None:
        """Take over what others saw while they learnt, and how long it took."""
        self._learnt.include(more)
        self._seconds += seconds

    def take(self, inputs_VD: Floats, outputs_VD: Floats) -> None:
        """Take over vectors that others have learnt."""
        self._matrices = matrices_of(inputs_VD, outputs_VD)

    def counting(self) -> Iterator[int]:
        """Count the tokens of the text, chunk by chunk; yield how many were counted."""
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
        """Keep how far it is; older checkpoints go when this one is whole."""
        name = f"pass-{self.epoch:04d}-{self.position:012d}"
        save_vectors(self._passes / name, self._vectors())
        for other in self._passes.iterdir():
            if other.name != name:
                StoreDir(other).remove()

    def finish(self, target: Path) -> TokenVectors:
        """Write the result; checkpoints are needed no more."""
        vectors = self._vectors()
        save_vectors(target, vectors)
        StoreDir(self._passes).remove()
        return vectors

    @property
    def learnt(self) -> Learnt:
        """Of the pass so far."""
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
        """Return the rate of blocks that begin there: a line over all passes, by position alone."""
        done = (epoch * self._part.tokens + starts) / (self.plan.epochs * self._part.tokens)
        return (self.plan.rate * np.maximum(1 - done, MIN_RATE)).astype(np.float32)

    def _vectors(self) -> TokenVectors:
        m, width = self._matrices, self.plan.width
        told = {
            **self._settings,
            "epoch": self.epoch,
            "position": self.position,
            "learnt": asdict(self._learnt),
            "losses": self._losses,
            "seconds": round(self._seconds, 3),
        }
        return TokenVectors(m.inputs_VS[:, :width], m.outputs_VS[:, :width], self._counted(), told)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"corpus": self._digest, "tokens": self._part.tokens, "plan": asdict(self.plan)}

    def _go_on(self) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        found = newest_pass(self._passes.parent)
        if found is None:
            return
        path, vectors = found
        told = vectors.told
        if any(told.get(key) != value for key, value in self._settings.items()):
            raise BadInput(
                f"{path}: was learnt from another text or with other settings",
                hint=f"remove {self._passes} to begin again",
            )
        self._matrices = matrices_of(vectors.inputs_VD, vectors.outputs_VD)
        self._counts_V = vectors.counts_V
        self.epoch, self.position = int(told["epoch"]), int(told["position"])
        self._learnt, self._losses = Learnt(**told["learnt"]), list(told["losses"])
        self._seconds = float(told["seconds"])


def newest_pass(folder: Path) -> tuple[Path, TokenVectors] | None:
    """Load the newest whole checkpoint in a run's folder; None where there is none."""
    passes = folder / PASSES
    kept = sorted(passes.iterdir()) if passes.is_dir() else []
    whole = [path for path in kept if load_manifest(StoreDir(path)) is not None]
    vectors = load_vectors(whole[-1]) if whole else None
    return None if vectors is None else (whole[-1], vectors)


def blocks_of(tokens: int) -> list[range]:
    """Return the blocks of one pass, as `Learner.advance` takes them: no block crosses two chunks."""
    return [
        range(start, min(start + BLOCK_TOKENS, until))
        for begin in range(0, tokens, CHUNK_TOKENS)
        for until in (min(begin + CHUNK_TOKENS, tokens),)
        for start in range(begin, until, BLOCK_TOKENS)
    ]
