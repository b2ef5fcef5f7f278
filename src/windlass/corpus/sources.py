"""Lists the files of a corpus, and computes the digest that names the result.

Input: the [corpus] table of a job. Output: the files in a fixed order, and a digest that changes when
the table, a file or the format changes; equal digests mean that there is nothing to build.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from windlass.corpus.shards import SHARD_TOKENS, shard_tokens_of
from windlass.spec.errors import NotFound
from windlass.spec.job import STDLIB, Corpus
from windlass.store.store_dir import StoredFile, StoreDir, find

FORMAT = "windlass-corpus-1"
TOPICS = f"{STDLIB}/topics"
GENERATED_FOLDERS = {"node_modules", "__pycache__", "site-packages", "dist-packages"}
COMPRESSED = (".gz", ".zst")

Kind = Literal["text", "jsonl", "parquet", "topics"]


@dataclass(frozen=True)
class SourceFile:
    """A file to read. `name` begins the ids of its documents; `mark` changes when its content may have."""

    name: str
    url: str
    bytes: int
    mark: str
    kind: Kind


def list_sources(corpus: Corpus, skipped: Counter[str]) -> list[SourceFile]:
    """Return every file once, in the order in which the sources name them."""
    files: dict[str, SourceFile] = {}
    for source in corpus.sources:
        found = _stdlib() if source == STDLIB else _named(source, corpus, skipped)
        for file in found:
            files.setdefault(file.url, file)
    return list(files.values())


def corpus_key(corpus: Corpus, files: Sequence[SourceFile], tokenizer_digest: str = "") -> str:
    """Return the digest that names the corpus of these files and this table."""
    inputs: dict[str, object] = {
        "format": FORMAT,
        "corpus": corpus.model_dump(mode="json", exclude={"store", "cache", "shard_tokens"}),
        "files": [[f.name, f.bytes, f.mark, f.kind] for f in files],
        "tokenizer": tokenizer_digest,
    }
    if (shard_tokens := shard_tokens_of(corpus)) != SHARD_TOKENS:
        inputs["shard_tokens"] = shard_tokens
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _named(source: str, corpus: Corpus, skipped: Counter[str]) -> list[SourceFile]:
    entries = find(source)
    if not entries:
        kind = "no file matches" if any(c in source for c in "*?[") else "the directory holds no files"
        raise NotFound(f"{source}: {kind}", hint="check the path; quote a glob so that the shell leaves it")
    kept = [entry for entry in entries if _is_wanted(_inside(source, entry))]
    skipped["hidden or generated file"] += len(entries) - len(kept)
    return [SourceFile(e.url, e.url, e.bytes, e.mark, _kind(e.url, corpus)) for e in kept]


def _inside(source: str, entry: StoredFile) -> PurePosixPath:
    """Return the path of the file relative to the source; empty if the file is itself the source."""
    fixed: list[str] = []
    for part in StoreDir(source).root.strip("/").split("/"):
        if any(c in part for c in "*?["):
            break
        fixed.append(part)
    # The root of a store is an empty path, which separates nothing.
    return PurePosixPath(entry.url.partition("/".join(fixed) or "://")[2].lstrip("/"))


def _is_wanted(path: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in GENERATED_FOLDERS for part in path.parts)


def _kind(url: str, corpus: Corpus) -> Kind:
    if corpus.format in ("jsonl", "parquet"):
        return "jsonl" if corpus.format == "jsonl" else "parquet"
    if corpus.format in ("text", "code"):
        return "text"
    name = url.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def _stdlib() -> list[SourceFile]:
    """List the running interpreter's library, its tests included, and the texts of its help system."""
    root = Path(sysconfig.get_path("stdlib"))
    topics = root / "pydoc_data" / "topics.py"
    files: list[SourceFile] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in GENERATED_FOLDERS]
        paths = [Path(folder, name) for name in names if name.endswith(".py")]
        # The topics come as plain text below; their module is the same text in quotes.
        files += [
            _stdlib_file(p, f"{STDLIB}/{p.relative_to(root).as_posix()}", "text")
            for p in paths
            if p != topics
        ]
    files.sort(key=lambda file: file.name)
    if topics.exists():
        files.append(_stdlib_file(topics, TOPICS, "topics"))
    return files


def _stdlib_file(path: Path, name: str, kind: Kind) -> SourceFile:
    stat = path.stat()
    return SourceFile(name, str(path), stat.st_size, str(stat.st_mtime), kind)
