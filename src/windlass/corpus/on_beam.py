"""The stages of a build on Apache Beam: the embedded runner here, Flink, Spark or Dataflow on a cluster.

    files -> read and clean each -> SCRATCH/clean/FILE-BLOCK.text, .npz    (then SCRATCH/clean/FILE.json)
    spans of cleaned text -> tokens -> SCRATCH/tokens/BLOCK.npz

Workers write their results to a scratch directory that all of them reach, under names that follow from the
input alone: a bundle that Beam runs twice writes the same bytes twice. Global decisions (duplicates, the
split, the tokenizer) are made by the calling process, from the facts about each document.
"""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from windlass.corpus.clean import CleanBlock, clean_block
from windlass.corpus.executor import in_blocks
from windlass.corpus.fast_tokenizer import BlockEncoder, encoder_for
from windlass.corpus.readers import Document, documents
from windlass.corpus.sources import SourceFile
from windlass.corpus.split import Pieces
from windlass.corpus.streams import ReadProgress
from windlass.corpus.tokenise import TextSpan, TokenBlock, encode_texts, mapped, span_blocks
from windlass.corpus.tokenizer import Tokenizer
from windlass.spec.errors import BadInput, WindlassError
from windlass.spec.job import Corpus
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.beam import BeamRunner, running
from windlass.store.store_dir import StoreDir

POLL_S = 0.5
COLUMNS = ("text_bytes", "tail_bytes", "chars", "source", "number", "fingerprint", "sketches")

Reach = tuple[str, int, int]
"""A file of cleaned text, and from where to where."""


class BeamExecutor:
    """Builds with any of Beam's runners. One object serves one build."""

    def __init__(self, runner: BeamRunner, scratch: str, report: Report = silent) -> None:
        self._runner, self._scratch, self._report = runner, scratch.rstrip("/"), report
        self._names: list[str] = []
        self._starts: list[int] = []
        self._end = 0
        """The offset of each file of cleaned text in the whole."""

    def clean(
        self, files: Sequence[SourceFile], corpus: Corpus, tally: ReadProgress
    ) -> Iterator[tuple[CleanBlock, int]]:
        place = StoreDir(f"{self._scratch}/clean")
        place.remove()
        sizes = {f"{number:08d}.json": file.bytes for number, file in enumerate(files)}
        with self._watched(place, "read", sizes):
            self._run(enumerate(files), CleanFile(corpus, place.url))
        for number, file in enumerate(files):
            report = json.loads(place.read(f"{number:08d}.json"))
            if "error" in report:
                raise BadInput(report["error"], hint=report["hint"])
            tally.skipped += Counter(report["skipped"])
            tally.finish(file)
            for block in range(report["blocks"]):
                yield self._taken(place, f"{number:08d}-{block:06d}"), tally.finished_bytes

    def tokenise(self, text: Path, pieces: Pieces, tokenizer: Tokenizer) -> Iterator[TokenBlock]:
        place = StoreDir(f"{self._scratch}/tokens")
        place.remove()
        with mapped(text) as data:
            blocks = list(span_blocks(data, pieces, cuts=encoder_for(tokenizer).cuts_at_lines))
        names = [f"{number:08d}.npz" for number in range(len(blocks))]
        sizes = {
            name: sum(span.stop - span.start for span in block)
            for name, block in zip(names, blocks, strict=True)
        }
        work = [
            (name, [(self._reach(span), span.ends) for span in block])
            for name, block in zip(names, blocks, strict=True)
        ]
        with self._watched(place, "tokenise", sizes):
            self._run(work, EncodeSpans(tokenizer, f"{self._scratch}/clean", place.url))
        for name in names:
            yield _token_block(place.read(name))
        place.remove()

    def close(self) -> None:
        """Remove the scratch directory."""
        StoreDir(self._scratch).remove()

    def _run(self, work: Any, do: Callable[[Any], None]) -> None:
        with running(self._runner) as pipeline:
            _ = (
                pipeline
                | "work" >> beam.Create(list(work), reshuffle=False)
                | "spread" >> beam.Reshuffle()
                | "do" >> beam.Map(do)
            )

    def _taken(self, place: StoreDir, name: str) -> CleanBlock:
        text, columns = place.read(f"{name}.text"), _arrays(place.read(f"{name}.npz"))
        self._names.append(name)
        self._starts.append(self._end)
        self._end += len(text)
        dropped = Counter(json.loads(bytes(columns["dropped"])))
        return CleanBlock(text=text, dropped=dropped, **{key: columns[key] for key in COLUMNS})

    def _reach(self, span: TextSpan) -> Reach:
        """Find the file that holds a span; no document spans two."""
        which = int(np.searchsorted(self._starts, span.start, side="right")) - 1
        start = self._starts[which]
        return f"{self._names[which]}.text", span.start - start, span.stop - start

    @contextmanager
    def _watched(self, place: StoreDir, stage: str, sizes: Mapping[str, int]) -> Iterator[None]:
        """Report progress while a pipeline runs, by the results written so far."""
        done, total = threading.Event(), sum(sizes.values())

        def watch() -> None:
            while not done.wait(POLL_S):
                there = sum(sizes.get(name, 0) for name in place.names())
                self._report(Progress(stage, there, total, "B", {}))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@dataclass(frozen=True)
class CleanFile:
    """Reads and cleans one file; an error is written in place of the result, so it survives any runner."""

    corpus: Corpus
    url: str

    def __call__(self, numbered: tuple[int, SourceFile]) -> None:
        number, file = numbered
        place, tally, blocks = StoreDir(self.url), ReadProgress(), 0
        try:
            found = (Document(number, one.number, one.text) for one in documents([file], self.corpus, tally))
            for block in in_blocks(found):
                self._leave(place, f"{number:08d}-{blocks:06d}", clean_block(block, self.corpus))
                blocks += 1
            report: dict[str, Any] = {"blocks": blocks, "skipped": tally.skipped}
        except WindlassError as error:
            report = {"error": error.message, "hint": error.hint}
        place.write(f"{number:08d}.json", json.dumps(report).encode())

    def _leave(self, place: StoreDir, name: str, block: CleanBlock) -> None:
        columns = {key: getattr(block, key) for key in COLUMNS}
        columns["dropped"] = np.frombuffer(json.dumps(block.dropped).encode(), dtype=np.uint8)
        place.write(f"{name}.text", block.text)
        place.write(f"{name}.npz", _packed(columns))


@dataclass(frozen=True)
class EncodeSpans:
    """Encodes one block of spans, read from the cleaned files."""

    tokenizer: Tokenizer
    texts: str
    url: str

    @cached_property
    def _encoder(self) -> BlockEncoder:
        return encoder_for(self.tokenizer)

    def __reduce__(self) -> Any:
        return EncodeSpans, (self.tokenizer, self.texts, self.url)

    def __call__(self, named: tuple[str, list[tuple[Reach, bool]]]) -> None:
        name, spans = named
        texts = list(_read(StoreDir(self.texts), [reach for reach, _ in spans]))
        ends = [ends for _, ends in spans]
        tokens, counts = encode_texts(texts, ends, self._encoder, self.tokenizer.end_id)
        text_bytes = sum(stop - start for (_, start, stop), _ in spans)
        columns = {"tokens": tokens, "document_tokens": counts, "text_bytes": np.array(text_bytes)}
        StoreDir(self.url).write(name, _packed(columns))


def _read(place: StoreDir, reaches: Sequence[Reach]) -> Iterator[str]:
    """Read spans, each file that holds some of them opened once in a row."""
    at = 0
    while at < len(reaches):
        name = reaches[at][0]
        with place.reading(name) as file:
            while at < len(reaches) and reaches[at][0] == name:
                _, start, stop = reaches[at]
                file.seek(start)
                yield file.read(stop - start).decode()
                at += 1


def _packed(arrays: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, allow_pickle=False, **arrays)
    return sink.getvalue()


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)


def _token_block(data: bytes) -> TokenBlock:
    found = _arrays(data)
    return TokenBlock(found["tokens"], found["document_tokens"], int(found["text_bytes"]))
