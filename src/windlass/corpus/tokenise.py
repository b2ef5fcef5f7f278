"""Turns pieces of cleaned text into tokens.

Input: the file of cleaned text, the pieces of a part, the tokenizer. Output: for every block of about a
megabyte, the tokens, with the end token after every document, and how many each document has. Blocks are
encoded in processes that map the text themselves, so only positions and tokens are exchanged.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windlass.corpus.fast_tokenizer import BlockEncoder, encoder_for
from windlass.corpus.pool import spread
from windlass.corpus.shards import PartWriter
from windlass.corpus.split import Pieces
from windlass.corpus.tokenizer import Tokenizer

BLOCK_BYTES = 1 << 20

Counts = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class TextSpan:
    """A run of text to encode; `ends` says whether its document ends with it."""

    start: int
    stop: int
    ends: bool


@dataclass(frozen=True)
class TokenBlock:
    """The tokens of one block of spans. `document_tokens` has an entry for every document that ends in it."""

    tokens: Ids
    document_tokens: Counts
    text_bytes: int


def tokenise(text: Path, pieces: Pieces, tokenizer: Tokenizer, processes: int) -> Iterator[TokenBlock]:
    """Yield the tokens of the pieces, in order."""
    cuts = encoder_for(tokenizer).cuts_at_lines
    with mapped(text) as data:
        blocks = span_blocks(data, pieces, cuts=cuts)
        yield from spread(
            _encode, blocks, processes=processes, prepare=_prepare, arguments=(str(text), tokenizer)
        )
        _Worker.release()


def write_part(writer: PartWriter, pieces: Pieces, blocks: Iterator[TokenBlock]) -> Iterator[TokenBlock]:
    """Store blocks as they come, with the rows of the documents that they finish.

    Blocks are yielded with the whole lengths of those documents, including their parts in earlier blocks.
    """
    done, start, unfinished = 0, 0, 0
    for block in blocks:
        writer.add_tokens(block.tokens)
        counts = block.document_tokens.copy()
        rest = len(block.tokens) - int(counts.sum())
        if len(counts):
            counts[0] += unfinished
            unfinished = 0
        unfinished += rest
        until = done + len(counts)
        starts = start + np.cumsum(counts) - counts
        rows = [starts, pieces.text_bytes[done:until], pieces.source[done:until], pieces.number[done:until]]
        writer.add_documents(np.stack(rows, axis=1).astype(np.uint64))
        start, done = start + int(counts.sum()), until
        yield replace(block, document_tokens=counts)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def span_blocks(data: mmap.mmap, pieces: Pieces, *, cuts: bool) -> Iterator[list[TextSpan]]:
    """Gather spans into blocks of about BLOCK_BYTES, cutting long documents where that changes nothing."""
    block, size = list[TextSpan](), 0
    for start, length in zip(pieces.start.tolist(), pieces.text_bytes.tolist(), strict=True):
        for span in _spans(data, start, start + length, cuts):
            block.append(span)
            size += span.stop - span.start
            if size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
    if block:
        yield block


def _spans(data: mmap.mmap, start: int, stop: int, cuts: bool) -> Iterator[TextSpan]:
    while cuts and stop - start > 2 * BLOCK_BYTES:
        boundary = _line_boundary(data, start + BLOCK_BYTES, stop)
        if boundary is None:
            break
        yield TextSpan(start, boundary, ends=False)
        start = boundary
    yield TextSpan(start, stop, ends=True)


def _line_boundary(data: mmap.mmap, start: int, stop: int) -> int | None:
    """Find a line feed with a visible ASCII character behind it, which no token reaches across."""
    while (found := data.find(b"\n", start, stop - 1)) >= 0:
        if 0x21 <= data[found + 1] <= 0x7E or 0xE5 <= data[found + 1] <= 0xE9:
            return found + 1
        start = found + 1
    return None


class _Worker:
    """Per-process state that is kept between blocks."""

    data: mmap.mmap | None = None
    encoder: BlockEncoder
    end: int

    @classmethod
    def release(cls) -> None:
        if cls.data is not None:
            cls.data.close()
            cls.data = None


def _prepare(text: str, tokenizer: Tokenizer) -> None:
    _Worker.data = mapped(Path(text))
    _Worker.encoder = encoder_for(tokenizer)
    _Worker.end = tokenizer.end_id


def _encode(block: list[TextSpan]) -> TokenBlock:
    assert _Worker.data is not None
    texts = [_Worker.data[span.start : span.stop].decode() for span in block]
    tokens, counts = encode_texts(texts, [span.ends for span in block], _Worker.encoder, _Worker.end)
    return TokenBlock(tokens, counts, sum(span.stop - span.start for span in block))


def encode_texts(
    texts: Sequence[str], ends: Sequence[bool], encoder: BlockEncoder, end_id: int
) -> tuple[Ids, Counts]:
    """Return the tokens of texts, and how many each document has; `ends` says where one ends."""
    end = np.array([end_id], dtype=np.uint32)
    parts: list[Ids] = []
    counts: list[int] = []
    count = 0
    for is_end, ids in zip(ends, encoder.encode(texts), strict=True):
        parts.append(ids)
        count += len(ids)
        if is_end:
            parts.append(end)
            counts.append(count + 1)
            count = 0
    return np.concatenate(parts), np.array(counts, dtype=np.int64)
