"""One pass of the E-step over a corpus, or over this worker's share of it.

The corpus is divided into blocks of sequences that depend on the model's sizes alone. Worker i of n takes
blocks i, i + n, i + 2n, ...; the threads of a worker take them from one queue, and one thread computes each
block.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np
import torch

from windlass.models.hmm.weights import HmmWeights
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.train.hmm.exact_sum import ExactSums
from windlass.train.hmm.expectation import HmmTables, block_sequences, expect, tables_of
from windlass.train.hmm.text import HmmText, Tokens

AHEAD = 2
"""Blocks queued for each thread: read while others compute, few enough to stop soon."""


def sweep(
    weights: HmmWeights,
    text: HmmText,
    *,
    threads: int = 1,
    share: tuple[int, int] = (0, 1),
    only: range | None = None,
    dtype: torch.dtype = torch.float64,
    report: Report = silent,
    stopped: Callable[[], bool] = lambda: False,
) -> ExactSums | None:
    """Return the sums over this worker's share (index, number of workers) of the blocks, or over the blocks
    `only`; None if it was stopped."""
    tally = ExactSums(weights.states, weights.vocabulary, text.tokens)
    tables, done = tables_of(weights, dtype), 0
    blocks = blocks_of(weights.states, text)
    blocks = blocks[share[0] :: share[1]] if only is None else blocks[only.start : only.stop]
    total = sum(map(len, blocks)) * text.length
    with ThreadPoolExecutor(threads, initializer=_compute_alone) as pool:
        waiting: set[Future[int]] = set()
        for block in blocks:
            tokens_NT = text.read(np.arange(block.start, block.stop, dtype=np.int64))
            waiting.add(pool.submit(_one, tables, tally, tokens_NT))
            while len(waiting) >= threads * AHEAD:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                done += sum(future.result() for future in ended)
                report(Progress("expect", done, total, "tokens"))
            if stopped():
                pool.shutdown(cancel_futures=True)
                return None
        for future in waiting:
            future.result()
    report(Progress("expect", total, total, "tokens"))
    return tally


def blocks_of(states: int, text: HmmText) -> list[range]:
    """Return the sequences of each block."""
    size = block_sequences(states, text.length)
    return [range(first, min(first + size, text.count)) for first in range(0, text.count, size)]


def _one(tables: HmmTables, tally: ExactSums, tokens_NT: Tokens) -> int:
    tally.add(expect(tables, torch.from_numpy(tokens_NT)))
    return int(tokens_NT.size)


def _compute_alone() -> None:
    """Flush denormal numbers to 0: computing with them takes a hundred times longer."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
