"""Compares our tokenising with the tokenizers library alone: `python -m windlass.lab.bench.tokenise`.

Both use the same text, tokenizer and cores, in turn, in one run. Ours is the whole stage: from cleaned text
on disk to committed shards, including the start of its processes. Theirs is `encode_batch` alone, with its
fastest settings here, and the ids are discarded.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.corpus.pool import processes_for
from windlass.corpus.shards import SHARD_TOKENS, PartWriter, token_type
from windlass.corpus.split import Pieces
from windlass.corpus.tokenise import tokenise, write_part
from windlass.corpus.tokenizer import Tokenizer
from windlass.spec.job import Corpus
from windlass.spec.protocol.entrypoint import emit, run_entrypoint
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

BATCHES = (64, 512, None)
PROBE_SHARE = 8


def measure(
    home: Path, *, repeats: int = 5, corpus: Corpus | None = None, report: Report = silent
) -> dict[str, Any]:
    """Return the figures; the corpus is built under `home` if it does not exist yet."""
    built = load_corpus(build_corpus(corpus or Corpus(), home, report))
    documents = [
        built.tokenizer.decode(built.train.document(i).tolist()) for i in range(built.train.documents)
    ]
    with tempfile.TemporaryDirectory(dir=home) as folder:
        text, pieces = _write_text(Path(folder, "text"), documents)
        raw_setting = _fastest(built.tokenizer, documents)
        ours, raw = [], []
        for round_ in range(repeats):
            report(Progress("bench", round_, repeats, "rounds"))
            raw.append(_timed(lambda: _raw(built.tokenizer, documents, *raw_setting)))
            ours.append(_timed(lambda: _ours(built.tokenizer, text, pieces, Path(folder, "shards"))))
        report(Progress("bench", repeats, repeats, "rounds"))
    text_bytes = int(pieces.text_bytes.sum())
    our_s, raw_s = statistics.median(ours), statistics.median(raw)
    return {
        "figures": {
            "vs_raw_tokenizers": raw_s / our_s,
            "mb_per_s": text_bytes / our_s / 1e6,
            "tokens_per_s": len(built.train) / our_s,
            "raw_mb_per_s": text_bytes / raw_s / 1e6,
            "text_mb": text_bytes / 1e6,
        },
        "raw_setting": {"function": raw_setting[0], "batch": raw_setting[1]},
        "seconds": {"ours": ours, "raw": raw},
    }


def _write_text(path: Path, documents: list[str]) -> tuple[Path, Pieces]:
    import numpy as np

    encoded = [text.encode() for text in documents]
    path.write_bytes(b"".join(encoded))
    lengths = np.array([len(text) for text in encoded], dtype=np.uint64)
    nothing = np.zeros(len(lengths), dtype=np.uint64)
    return path, Pieces(np.cumsum(lengths) - lengths, lengths, nothing, nothing)


def _fastest(tokenizer: Tokenizer, documents: list[str]) -> tuple[str, int | None]:
    """Try every setting of the library on part of the text."""
    some = documents[::PROBE_SHARE]
    settings = list(itertools.product(("encode_batch", "encode_batch_fast"), BATCHES))
    _raw(tokenizer, some, *settings[0])  # starts its threads
    return min(settings, key=lambda setting: _timed(lambda: _raw(tokenizer, some, *setting)))


def _raw(tokenizer: Tokenizer, documents: list[str], function: str, batch: int | None) -> None:
    encode = getattr(tokenizer.inner, function)
    size = batch or len(documents)
    for start in range(0, len(documents), size):
        encode(documents[start : start + size], add_special_tokens=False)


def _ours(tokenizer: Tokenizer, text: Path, pieces: Pieces, target: Path) -> None:
    writer = DirectoryWriter(StoreDir(target))
    processes = processes_for(int(pieces.text_bytes.sum()), None)
    with PartWriter(writer, "train", token_type(tokenizer.vocabulary), SHARD_TOKENS) as shards:
        for _ in write_part(shards, pieces, tokenise(text, pieces, tokenizer, processes)):
            pass
    writer.commit()


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m windlass.lab.bench.tokenise")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)

    def tell(p: Progress) -> None:
        emit({"event": "progress", "stage": p.stage, "done": p.done, "total": p.total, "unit": p.unit})

    with tempfile.TemporaryDirectory() as home:
        emit({"done": measure(Path(home), repeats=args.repeats, report=tell)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
