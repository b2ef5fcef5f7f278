"""Builds a corpus: from the files that a job names to shards that training maps into memory.

    list the files -> read and clean -> drop duplicates -> split -> tokenizer -> tokenise -> commit

Input: the [corpus] table. Output: a directory under home/corpora, named by a digest of its inputs, so that
the same build finds it there. With a store, a corpus that is there is used, and a new one is published there
(`remote.published`). A build that dies leaves no manifest and thus no corpus; the next build clears its
debris and starts over.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.corpus.clean import CleanBlock
from windlass.corpus.corpus_dir import PARTS, TABLE, load_corpus
from windlass.corpus.document_table import Gathered, gather
from windlass.corpus.executor import Executor, ProcessPool
from windlass.corpus.remote.published import Origin, adopt, origin_for, settle
from windlass.corpus.shards import PartWriter, shard_tokens_of, token_type
from windlass.corpus.sources import FORMAT, SourceFile, corpus_key, list_sources
from windlass.corpus.split import Pieces, divide
from windlass.corpus.stats import PartCount, describe
from windlass.corpus.streams import ReadProgress
from windlass.corpus.tokenise import write_part
from windlass.corpus.tokenizer import CONFIG, FILE, Tokenizer, load_tokenizer
from windlass.corpus.train_tokenizer import sample_bytes, take_characters, take_words, train_bpe
from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.spec.job import Corpus
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.spec.units import format_count
from windlass.store.lock import locked
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir, translate_os_errors

KEY_LETTERS = 12
CLEANED = "cleaned.text"


def build_corpus(
    corpus: Corpus,
    home: Path,
    report: Report = silent,
    processes: int | None = None,
    *,
    executor: Executor | None = None,
) -> Path:
    """Build the corpus, or find it built; return its directory.

    Without `executor`, a pool of `processes` does the work.
    """
    tally = ReadProgress()
    given = _given_tokenizer(corpus)
    files = list_sources(corpus, tally.skipped)
    folder = _folder(corpus, home, files, given)
    origin = origin_for(corpus.store, folder.name, corpus.cache, home) if corpus.store else None
    if not is_whole(folder):
        _make(_Build(corpus, files, given, folder, tally, report, executor or ProcessPool(processes)), origin)
    if origin is not None:
        settle(folder, origin, report)
    return folder


def find_built(corpus: Corpus, home: Path) -> Path:
    """Return where `build_corpus` put, or would put, the corpus, without building it."""
    return _folder(corpus, home, list_sources(corpus, Counter()), _given_tokenizer(corpus))


def is_whole(folder: Path) -> bool:
    """Whether the directory holds a finished corpus with all its files at full length."""
    try:
        load_corpus(folder)
    except (NotFound, Damaged):
        return False
    return True


@dataclass(frozen=True)
class _Build:
    """One run through the stages."""

    corpus: Corpus
    files: Sequence[SourceFile]
    given: Tokenizer | None
    folder: Path
    tally: ReadProgress
    report: Report
    executor: Executor

    def run(self) -> None:
        gathered = self._unique(gather(self._cleaned(), self.folder / CLEANED, self.tally.skipped))
        parts = divide(gathered.pieces, gathered.fingerprint, gathered.tail_bytes, self.corpus)
        tokenizer = self.given or self._tokenizer(gathered, parts[0])
        self._commit(gathered, dict(zip(PARTS, parts, strict=True)), tokenizer)
        gathered.path.unlink()

    def _cleaned(self) -> Iterator[CleanBlock]:
        total, kept = sum(file.bytes for file in self.files), 0
        for block, position in self.executor.clean(self.files, self.corpus, self.tally):
            kept += len(block.source)
            self._report_stage("read", min(position, total), total, documents=kept)
            yield block

    def _unique(self, gathered: Gathered) -> Gathered:
        if not len(gathered):
            raise _empty(self.corpus, gathered.dropped, len(self.files))
        total = int(gathered.pieces.text_bytes.sum())
        self._report_stage("clean", 0, total)
        unique = gathered.without_duplicates(self.corpus.clean)
        self._report_stage("clean", total, total, documents=len(unique), dropped=len(gathered) - len(unique))
        return unique

    def _tokenizer(self, gathered: Gathered, train: Pieces) -> Tokenizer:
        """Take characters from the whole corpus, so that none is unknown; train others on training text."""
        wanted = self.corpus.tokenizer
        if wanted.kind == "char":
            total = int(gathered.pieces.text_bytes.sum())
            return take_characters(self._watched(gathered.texts(gathered.pieces), total))
        if wanted.kind == "word":
            total = int(train.text_bytes.sum())
            return take_words(self._watched(gathered.texts(train), total), wanted.vocabulary)
        tokenizer = train_bpe(self._sampled(gathered, train), wanted.vocabulary)
        self.report(Progress("merge", wanted.vocabulary, wanted.vocabulary, "tokens"))
        return tokenizer

    def _sampled(self, gathered: Gathered, train: Pieces) -> Iterator[str]:
        vocabulary = self.corpus.tokenizer.vocabulary
        total = min(sample_bytes(vocabulary), int(train.text_bytes.sum()))
        yield from self._watched(gathered.sample(train, total), total)
        # The words are counted; now the library merges for a while without reporting progress.
        self.report(Progress("merge", 0, vocabulary, "tokens"))

    def _watched(self, texts: Iterator[str], total: int) -> Iterator[str]:
        done = 0
        for text in texts:
            yield text
            done += len(text.encode())
            self._report_stage("tokenizer", min(done, total), total)

    def _commit(self, gathered: Gathered, parts: dict[str, Pieces], tokenizer: Tokenizer) -> None:
        """Write every file, the manifest last."""
        writer = DirectoryWriter(StoreDir(self.folder))
        counts = self._write_parts(writer, gathered, parts, tokenizer)
        table = {
            "format": FORMAT,
            "token_bytes": token_type(tokenizer.vocabulary).itemsize,
            "vocabulary": tokenizer.vocabulary,
            "end_id": tokenizer.end_id,
            "parts": {part: asdict(count.record) for part, count in counts.items()},
            "stats": {
                "files": len(self.files),
                "documents": len(gathered),
                "chars": int(gathered.chars.sum()),
                **describe(counts, tokenizer.vocabulary),
                "dropped": dict(sorted(gathered.dropped.items())),
            },
        }
        writer.write(FILE, tokenizer.json)
        writer.write(CONFIG, _json(tokenizer.config))
        writer.write("sources.json", _json([file.name for file in self.files]))
        writer.write("config.json", _json(self.corpus.model_dump(mode="json", exclude={"store", "cache"})))
        writer.write(TABLE, _json(table))
        writer.commit({"kind": FORMAT})

    def _write_parts(
        self, writer: DirectoryWriter, gathered: Gathered, parts: dict[str, Pieces], tokenizer: Tokenizer
    ) -> dict[str, PartCount]:
        total = sum(int(pieces.text_bytes.sum()) for pieces in parts.values())
        done, tokens, size = 0, 0, shard_tokens_of(self.corpus)
        counts = {part: PartCount(tokenizer.vocabulary) for part in parts}
        for part, pieces in parts.items():
            blocks = self.executor.tokenise(gathered.path, pieces, tokenizer)
            with PartWriter(writer, part, token_type(tokenizer.vocabulary), size) as shards:
                for block in write_part(shards, pieces, blocks):
                    counts[part].add(block.tokens, block.document_tokens)
                    done, tokens = done + block.text_bytes, tokens + len(block.tokens)
                    self._report_stage("tokenise", done, total, tokens=tokens)
                counts[part].record = shards.record
        return counts

    def _report_stage(self, stage: str, done: int, total: int, **note: int) -> None:
        self.report(Progress(stage, done, total, "B", {k: format_count(v) for k, v in note.items()}))


def _given_tokenizer(corpus: Corpus) -> Tokenizer | None:
    return None if corpus.tokenizer.path is None else load_tokenizer(corpus.tokenizer.path)


def _folder(corpus: Corpus, home: Path, files: Sequence[SourceFile], given: Tokenizer | None) -> Path:
    key = corpus_key(corpus, files, "" if given is None else given.digest)
    return home / "corpora" / key[:KEY_LETTERS]


def _make(build: _Build, origin: Origin | None) -> None:
    """Adopt the corpus if its store has it, or else build it; on failure, leave nothing."""
    folder = build.folder
    lock = folder.with_name(f".{folder.name}.lock")
    with translate_os_errors(str(folder)), locked(lock, f"the corpus {folder.name}"):
        if is_whole(folder):  # another process has finished it just before we got the lock
            return
        _begin(folder)
        try:
            if origin is None or not adopt(folder, origin):
                build.run()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _begin(folder: Path) -> None:
    """Make an empty directory; remove what a dead build left there."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _empty(corpus: Corpus, dropped: Counter[str], files: int) -> BadInput:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    counted = f"{files} file{'' if files == 1 else 's'}"
    return BadInput(
        f"the corpus is empty: no document is left of {counted} in {', '.join(corpus.sources)}"
        + (f" (dropped: {reasons})" if reasons else ""),
        hint="sources must be UTF-8 text, JSONL or Parquet; [corpus.clean] says which documents are kept",
    )


def _json(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
