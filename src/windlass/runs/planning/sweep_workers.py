"""The steps of a sweep that run in its workers, and how they report progress.

Small objects that are pickled to the workers of any Beam runner: they read the corpus, count its tokens, and
write rows to any store. Workers report progress by appending to a file whose size is the count: appends of
several processes do not overwrite each other, and no server is needed.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from windlass.corpus.clean import encodable, normalised, refusal
from windlass.corpus.fast_tokenizer import BlockEncoder, encoder_for
from windlass.corpus.readers import documents
from windlass.corpus.sources import SourceFile
from windlass.corpus.streams import ReadProgress
from windlass.corpus.tokenizer import Tokenizer
from windlass.spec.job import Corpus
from windlass.spec.protocol.progress import Progress, Report
from windlass.store.store_dir import StoreDir

BLOCK_CHARS = 1 << 20
POLL_S = 0.2
TEXT = ("fleet", "precision", "device", "sharding", "recompute", "reason", "message", "hint")
SECONDS = ("step_s", "step_low_s", "step_high_s", "memory_bytes", "seconds", "dollars_low", "dollars_high")
REQUEST = (
    "fleet",
    "parameters",
    "context",
    "precision",
    "bucket",
    "documents",
    "tokens",
    "sequence",
    "batch",
)
AXES = ("devices", "dp", "tp", "pp", "virtual", "cp", "ep", "sharding", "recompute", "micro_batch", "steps")
COLUMNS = {
    "result": (*REQUEST, "device", *AXES, *SECONDS),
    "no_solution": (*REQUEST, "reason"),
    "buckets": ("bucket", "documents", "tokens"),
    "unreadable": ("message", "hint"),
}


@dataclass(frozen=True)
class ReadBlocks:
    """A source file -> its cleaned documents, in blocks of about a megabyte."""

    corpus: Corpus

    def __call__(self, file: SourceFile) -> Iterator[list[str]]:
        block, size = list[str](), 0
        for text in kept([file], self.corpus):
            block.append(text)
            size += len(text)
            if size >= BLOCK_CHARS:
                yield block
                block, size = [], 0
        if block:
            yield block


@dataclass(frozen=True)
class CountTokens:
    """A block of documents -> tokens of each, the end of the document included."""

    tokenizer: Tokenizer

    @cached_property
    def _encoder(self) -> BlockEncoder:
        return encoder_for(self.tokenizer)

    def __reduce__(self) -> Any:
        return CountTokens, (self.tokenizer,)

    def __call__(self, block: list[str]) -> list[int]:
        return [len(ids) + 1 for ids in self._encoder.encode(block)]


@dataclass(frozen=True)
class WriteRows:
    """The rows of an output -> a Parquet file in any store."""

    out: str

    def __call__(self, name: str, rows: list[dict[str, Any]]) -> None:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        kinds = {column: _kind(arrow, column) for column in COLUMNS[name]}
        table = arrow.Table.from_pylist(rows, schema=arrow.schema(kinds.items()))
        sink = io.BytesIO()
        parquet.write_table(table, sink)
        StoreDir(self.out).write(f"{name}.parquet", sink.getvalue())


@dataclass(frozen=True)
class WorkCounter:
    """Counts work done by any process of this machine; does nothing where workers are elsewhere."""

    folder: str | None

    def __call__(self, kind: str, amount: int) -> None:
        if self.folder is not None:
            with (Path(self.folder) / kind).open("ab") as file:
                file.write(b"." * amount)

    def count(self, kind: str) -> int:
        path = Path(self.folder or "") / kind
        return path.stat().st_size if self.folder is not None and path.exists() else 0


class WorkerProgress:
    """Reports, while the pipeline runs, how far its workers are."""

    def __init__(self, counter: WorkCounter, files: Sequence[SourceFile], report: Report) -> None:
        self._counter, self._report = counter, report
        self._total_kib = sum(file.bytes for file in files) >> 10
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(POLL_S):
            plans = self._counter.count("plan")
            if plans:
                self._report(Progress("plan", plans, None, "plans"))
            else:
                read = min(self._counter.count("read"), self._total_kib)
                self._report(Progress("measure", read << 10, self._total_kib << 10, "B"))


def kept(files: Sequence[SourceFile], corpus: Corpus) -> Iterator[str]:
    """Yield documents cleaned as in a build; duplicates stay, because only a whole build finds them."""
    rules = corpus.clean
    for document in documents(files, corpus, ReadProgress()):
        text = encodable(document.text)
        text = normalised(text) if rules.normalize else text
        if refusal(text, rules.min_chars, rules.max_chars, rules.max_repetition) is None:
            yield text


def read_rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    found: list[dict[str, Any]] = parquet.read_table(io.BytesIO(data)).to_pylist()
    return found


def _kind(arrow: Any, column: str) -> Any:
    if column in TEXT:
        return arrow.string()
    return arrow.float64() if column in SECONDS else arrow.int64()
