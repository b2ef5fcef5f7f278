"""Opens a file at any URL as plain bytes, decompressed, and counts the bytes read.

Input: a source file, plain or compressed (.gz, .zst). Output: a buffered stream of its content. A truncated
archive is an error, never read as a shorter file.
"""

from __future__ import annotations

import functools
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from windlass.corpus.sources import SourceFile
from windlass.spec.errors import BadInput
from windlass.store.store_dir import opened

CHUNK_BYTES = 1 << 20


@dataclass
class ReadProgress:
    """The bytes read so far, and what was skipped and why."""

    skipped: Counter[str] = field(default_factory=Counter)
    finished_bytes: int = 0
    position: Callable[[], int] = int
    """Returns the position in the open file."""

    @property
    def read_bytes(self) -> int:
        return self.finished_bytes + self.position()

    def finish(self, file: SourceFile) -> None:
        self.position = int
        self.finished_bytes += file.bytes


@contextmanager
def plain_bytes(file: SourceFile, tally: ReadProgress) -> Iterator[io.BufferedReader]:
    """Open a file as plain bytes; raise BadInput for a truncated archive."""
    with opened(file.url) as raw:
        tally.position = raw.tell
        try:
            yield _decompressed(raw, file)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadInput(f"{file.name}: broken gzip file: {error}") from None
        except UnicodeDecodeError as error:
            raise BadInput(f"{file.name}: not UTF-8: {error}") from None
        finally:
            tally.position = functools.partial(int, file.bytes)


def _decompressed(raw: IO[bytes], file: SourceFile) -> io.BufferedReader:
    if file.url.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), CHUNK_BYTES)
    if file.url.endswith(".zst"):
        return io.BufferedReader(_Chunks(_unzstd(raw, file.name)), CHUNK_BYTES)
    return io.BufferedReader(raw, CHUNK_BYTES)  # type: ignore[arg-type]


def _unzstd(raw: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of one or more frames; unlike the library's reader, detect a truncated last one."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    started = False
    try:
        while chunk := raw.read(CHUNK_BYTES):
            while chunk:
                started = True
                yield frame.decompress(chunk)
                chunk = frame.unused_data
                if frame.eof:
                    frame, started = zstandard.ZstdDecompressor().decompressobj(), False
    except zstandard.ZstdError as error:
        raise BadInput(f"{name}: broken zstd file: {error}") from None
    if started:
        raise BadInput(f"{name}: broken zstd file: it ends in the middle of a frame")


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
