"""Runs the stages that touch every byte of a text: a process pool here, or Apache Beam (`on_beam`).

The stages are the same pure functions, and their results are taken in the order of the documents, so a
corpus has the same bytes on every executor.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from windlass.corpus.clean import CleanBlock, clean_block
from windlass.corpus.pool import processes_for, spread
from windlass.corpus.readers import Document, documents
from windlass.corpus.sources import SourceFile
from windlass.corpus.split import Pieces
from windlass.corpus.streams import ReadProgress
from windlass.corpus.tokenise import TokenBlock, tokenise
from windlass.corpus.tokenizer import Tokenizer
from windlass.spec.job import Corpus

BLOCK_BYTES = 1 << 20
SMALL_BYTES = 4 << 20


class Executor(Protocol):
    """Runs the stages; `tally` counts the bytes read and what was skipped."""

    def clean(
        self, files: Sequence[SourceFile], corpus: Corpus, tally: ReadProgress
    ) -> Iterator[tuple[CleanBlock, int]]:
        """Yield cleaned blocks in the order of documents, with the bytes read up to each."""

    def tokenise(self, text: Path, pieces: Pieces, tokenizer: Tokenizer) -> Iterator[TokenBlock]:
        """Yield the tokens of pieces of the cleaned text, in order."""


class ProcessPool:
    """Processes of this machine: as many as pay off, or as requested."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def clean(
        self, files: Sequence[SourceFile], corpus: Corpus, tally: ReadProgress
    ) -> Iterator[tuple[CleanBlock, int]]:
        """Read in this process, clean in the others."""
        positions: deque[int] = deque()
        blocks = _noted(documents(files, corpus, tally), tally, positions)
        processes = processes_for(sum(file.bytes for file in files), self._processes)
        for block in spread(functools.partial(clean_block, corpus=corpus), blocks, processes=processes):
            yield block, positions.popleft()

    def tokenise(self, text: Path, pieces: Pieces, tokenizer: Tokenizer) -> Iterator[TokenBlock]:
        total = int(pieces.text_bytes.sum())
        # A small part is done sooner than processes are started for it.
        processes = processes_for(total, self._processes) if total > SMALL_BYTES else 1
        return tokenise(text, pieces, tokenizer, processes)


def in_blocks(found: Iterator[Document]) -> Iterator[list[Document]]:
    """Gather documents into blocks of about BLOCK_BYTES."""
    block, size = list[Document](), 0
    for document in found:
        block.append(document)
        size += len(document.text)
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _noted(found: Iterator[Document], tally: ReadProgress, positions: deque[int]) -> Iterator[list[Document]]:
    for block in in_blocks(found):
        positions.append(tally.read_bytes)
        yield block
