"""A sweep: measures a corpus and plans every option for every text length in it.

    corpus table -> files, tokenizer -> plan.sweep (Beam) -> Parquet files -> report.txt, report.html

`sweep_workers` runs in the Beam workers.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.corpus.build import find_built, is_whole
from windlass.corpus.corpus_dir import load_corpus
from windlass.corpus.sources import SourceFile, list_sources
from windlass.corpus.tokenizer import Tokenizer, load_tokenizer
from windlass.corpus.train_tokenizer import sample_bytes, take_characters, train_bpe
from windlass.plan.sweep.report import as_html, as_text
from windlass.plan.sweep.stages import SweepOption, SweepOptions, check_options, combinations
from windlass.runs.planning.sweep_workers import (
    COLUMNS,
    CountTokens,
    ReadBlocks,
    WorkCounter,
    WorkerProgress,
    WriteRows,
    kept,
    read_rows,
)
from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus, Job
from windlass.spec.protocol.progress import Progress, Report
from windlass.store.beam import BeamRunner, check_beam
from windlass.store.store_dir import StoreDir


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as the user wants it."""

    job: Job
    options: SweepOptions
    fleet: str | None
    out: str
    runner: str = "direct"
    processes: int = 1
    flags: tuple[str, ...] = ()


def sweep_corpus(request: SweepRequest, home: Path, report: Report) -> dict[str, Any]:
    """Run the sweep; return its rows by output, and write them and the reports to `request.out`."""
    options = combinations(request.options, request.fleet)
    check_options(options, request.job)
    files = list_sources(request.job.corpus, Counter())
    _run(_pipeline(), request, options, files, home, report)
    return _collect(request, files)


def _run(
    beam: Any,
    request: SweepRequest,
    options: tuple[SweepOption, ...],
    files: list[SourceFile],
    home: Path,
    report: Report,
) -> None:
    corpus = request.job.corpus
    count = CountTokens(_tokenizer(corpus, files, home, report))
    log = home / "logs" / "sweep.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    runner = BeamRunner(request.runner, request.processes, str(log), request.flags)
    with tempfile.TemporaryDirectory() as folder:
        counter = WorkCounter(folder if request.runner == "direct" else None)
        sweep = beam.Sweep(ReadBlocks(corpus), count, WriteRows(request.out), counter, request.job, options)
        with WorkerProgress(counter, files, report):
            beam.run_sweep(sweep, files, runner)


def _collect(request: SweepRequest, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Read the outputs, raise if the corpus is empty or unreadable, and write the reports."""
    place = StoreDir(request.out)
    rows = {name: read_rows(place.read(f"{name}.parquet")) for name in COLUMNS}
    if rows["unreadable"]:
        first = rows["unreadable"][0]
        raise BadInput(first["message"], hint=first["hint"])
    if not rows["buckets"]:
        raise BadInput(
            f"the corpus is empty: no text in {len(files)} file{'' if len(files) == 1 else 's'} of"
            f" {', '.join(request.job.corpus.sources)}",
            hint="sources must be UTF-8 text, JSONL or Parquet; [corpus.clean] says which documents are kept",
        )
    place.remove("unreadable.parquet")
    rows.pop("unreadable")
    place.write("report.txt", as_text(rows).encode())
    place.write("report.html", as_html(rows, request.job.name).encode())
    return rows


def _pipeline() -> Any:
    """Import Beam only when it is needed: it takes a second or two."""
    check_beam("plan sweep")
    from windlass.plan.sweep import pipeline

    return pipeline


def _tokenizer(corpus: Corpus, files: Sequence[SourceFile], home: Path, report: Report) -> Tokenizer:
    """Return the given tokenizer, that of the built corpus, or one trained on a sample."""
    if corpus.tokenizer.path is not None:
        return load_tokenizer(corpus.tokenizer.path)
    built = find_built(corpus, home)
    if is_whole(built):
        return load_corpus(built).tokenizer
    report(Progress("tokenizer", 0, None))
    if corpus.tokenizer.kind == "char":
        return take_characters(kept(files, corpus))
    return train_bpe(_sample(files, corpus), corpus.tokenizer.vocabulary)


def _sample(files: Sequence[SourceFile], corpus: Corpus) -> Iterator[str]:
    left = sample_bytes(corpus.tokenizer.vocabulary)
    for text in kept(files, corpus):
        yield text
        left -= len(text)
        if left <= 0:
            return
