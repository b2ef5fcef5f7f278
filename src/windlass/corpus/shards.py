"""Token ids on disk, memory-mapped, with the boundaries of documents kept.

A part (train, validation) is a series of files of little-endian integers, and a table with one row for each
document. Readers see one long array of tokens. Files on a store come through a cache
(`remote.remote_part`). The format is docs/formats/corpus.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus
from windlass.store.manifest import DirectoryWriter

SHARD_TOKENS = 64 << 20
STORED_SHARD_TOKENS = 2 << 20
"""For a corpus on a store: a shuffled read that misses fetches a whole shard for one window, so small is
good, until below a few MiB the store takes longer to answer than to send."""
DOCUMENTS = "documents.bin"
COLUMNS = ("start", "text_bytes", "source", "number")

Ints = npt.NDArray[np.integer[Any]]


def token_type(vocabulary: int) -> np.dtype[Any]:
    """Return the narrowest type of the format that holds every id."""
    return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")


def shard_tokens_of(corpus: Corpus) -> int:
    """Return how many tokens go into one file: as configured, or a default for local files or a store."""
    return corpus.shard_tokens or (STORED_SHARD_TOKENS if corpus.store else SHARD_TOKENS)


@dataclass(frozen=True)
class PartRecord:
    """What corpus.json says of a part."""

    tokens: int
    documents: int
    text_bytes: int
    shards: tuple[int, ...]
    """Tokens in each file; no document boundary is implied between them."""


class PartWriter:
    """Writes one part into a directory that is committed later. Documents come in order."""

    def __init__(self, writer: DirectoryWriter, part: str, kind: np.dtype[Any], shard_tokens: int) -> None:
        self._writer, self._part, self._kind, self._shard_tokens = writer, part, kind, shard_tokens
        self._shard = ExitStack()
        self._file: IO[bytes] | None = None
        self._shards: list[int] = []
        self._documents = self._text_bytes = 0
        self._open = ExitStack()

    def __enter__(self) -> PartWriter:
        self._table = self._open.enter_context(self._writer.writing(f"{self._part}/{DOCUMENTS}"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._shard.__exit__(kind, error, trace)
        finally:
            self._open.__exit__(kind, error, trace)

    @property
    def tokens(self) -> int:
        return sum(self._shards)

    @property
    def record(self) -> PartRecord:
        return PartRecord(self.tokens, self._documents, self._text_bytes, tuple(self._shards))

    def add_tokens(self, tokens: Ints) -> None:
        """Append tokens; a full file is followed by the next."""
        tokens = tokens.astype(self._kind, copy=False)
        while len(tokens):
            if self._file is None or self._shards[-1] == self._shard_tokens:
                self._next_file()
            assert self._file is not None
            room = self._shard_tokens - self._shards[-1]
            self._file.write(np.ascontiguousarray(tokens[:room]).data)
            self._shards[-1] += min(room, len(tokens))
            tokens = tokens[room:]

    def add_documents(self, rows: npt.NDArray[np.uint64]) -> None:
        """Append rows of COLUMNS."""
        self._table.write(np.ascontiguousarray(rows, dtype="<u8").data)
        self._documents += len(rows)
        self._text_bytes += int(rows[:, COLUMNS.index("text_bytes")].sum())

    def _next_file(self) -> None:
        self._shard.close()
        name = f"{self._part}/{shard_name(len(self._shards))}"
        self._file = self._shard.enter_context(self._writer.writing(name))
        self._shards.append(0)


def shard_name(number: int) -> str:
    return f"tokens-{number:05d}.bin"


class TokenShard(Protocol):
    """The tokens of one file."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice) -> Ints: ...


class PartFiles(Protocol):
    """Where the files of a part are read from."""

    def shard(self, number: int, tokens: int, kind: np.dtype[Any]) -> TokenShard: ...

    def documents(self, rows: int) -> npt.NDArray[np.uint64]: ...

    def expect(self, numbers: Sequence[int]) -> None:
        """Announce which shards are read next, so that they can be prefetched."""


class LocalFiles:
    """Files in a directory of this machine, mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def shard(self, number: int, tokens: int, kind: np.dtype[Any]) -> TokenShard:
        return np.memmap(self._folder / shard_name(number), dtype=kind, mode="r", shape=(tokens,))

    def documents(self, rows: int) -> npt.NDArray[np.uint64]:
        return np.memmap(self._folder / DOCUMENTS, dtype="<u8", mode="r", shape=(rows, len(COLUMNS)))

    def expect(self, numbers: Sequence[int]) -> None:
        """Do nothing: the operating system reads ahead."""


class TokenPart:
    """A part to read from: one long array of tokens, and its documents."""

    def __init__(
        self, folder: Path, record: PartRecord, kind: np.dtype[Any], files: PartFiles | None = None
    ) -> None:
        self.folder = folder
        self.tokens = record.tokens
        self.text_bytes = record.text_bytes
        self.documents = record.documents
        self._files: PartFiles = files or LocalFiles(folder)
        self._shards = [self._files.shard(i, size, kind) for i, size in enumerate(record.shards)]
        self._ends = list(np.cumsum(record.shards, dtype=np.int64).tolist())

    @cached_property
    def _table(self) -> npt.NDArray[np.uint64]:
        return self._files.documents(self.documents)

    def __len__(self) -> int:
        return self.tokens

    def read(self, start: int, stop: int) -> Ints:
        """Return the tokens from `start` up to `stop`; a view where they lie in one file."""
        if not 0 <= start <= stop <= self.tokens:
            raise BadInput(f"{self.folder}: no tokens {start} to {stop}; there are {self.tokens}")
        pieces = []
        while start < stop:
            number = bisect_right(self._ends, start)
            shard, end = self._shards[number], self._ends[number]
            base = end - len(shard)
            pieces.append(shard[start - base : min(stop, end) - base])
            start = min(stop, end)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else self._shards[0][:0]

    def expect(self, windows: npt.ArrayLike, context: int) -> None:
        """Announce which windows are read next, so that their shards are prefetched; return at once."""
        if not isinstance(self._files, LocalFiles):
            self._files.expect(shards_of(windows, context, self._ends))

    def column(self, name: str) -> npt.NDArray[np.uint64]:
        """Return a column of the table of documents: one of COLUMNS."""
        return self._table[:, COLUMNS.index(name)]

    def bounds(self, document: int) -> tuple[int, int]:
        """Return where a document begins and ends, its end token included."""
        starts = self.column("start")
        end = starts[document + 1] if document + 1 < len(starts) else self.tokens
        return int(starts[document]), int(end)

    def document(self, document: int) -> Ints:
        """Return the tokens of one document, its end token included."""
        return self.read(*self.bounds(document))


def shards_of(windows: npt.ArrayLike, context: int, ends: Sequence[int]) -> list[int]:
    """Return the numbers of the shards that windows touch, in the order of first use."""
    starts = np.asarray(windows, dtype=np.int64).reshape(-1) * context
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(ends, starts + context, side="right")
    pairs = dict.fromkeys(zip(first.tolist(), last.tolist(), strict=True))
    touched = dict.fromkeys(number for a, b in pairs for number in range(a, b + 1))
    return [number for number in touched if number < len(ends)]
