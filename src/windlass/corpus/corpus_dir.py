"""Opens a finished corpus, for training, evaluation and the CLI.

Input: the directory that `build` committed or `remote.published` adopted. Output: tokenizer, train
and validation tokens, counts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windlass.corpus.remote.cache import CacheFacts, ShardCache
from windlass.corpus.remote.prefetch import Ahead
from windlass.corpus.remote.published import is_large, load_origin
from windlass.corpus.remote.remote_part import CachedFiles
from windlass.corpus.shards import PartRecord, TokenPart
from windlass.corpus.sources import FORMAT
from windlass.corpus.tokenizer import CONFIG, FILE, Tokenizer
from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.store.manifest import Manifest, load_manifest, read_verified, verify
from windlass.store.store_dir import StoreDir

TABLE = "corpus.json"
PARTS = ("train", "validation")


@dataclass(frozen=True)
class BuiltCorpus:
    """Everything that a corpus directory holds; the tokens stay on disk."""

    path: Path
    digest: str
    """Names the content: tokenizer, tokens and documents, wherever they came from."""
    tokenizer: Tokenizer
    train: TokenPart
    validation: TokenPart
    sources: tuple[str, ...]
    config: dict[str, Any]
    stats: dict[str, Any]
    cache: ShardCache | None = None
    """The cache through which tokens are read when they are on a store."""

    def part(self, name: str) -> TokenPart:
        if name not in PARTS:
            raise BadInput(f"a corpus has no part '{name}'", hint="parts: " + ", ".join(PARTS))
        return self.train if name == "train" else self.validation

    def facts(self) -> CacheFacts | None:
        """Return the cache statistics of this process; None for a corpus on local disk."""
        return None if self.cache is None else self.cache.facts()

    def document_id(self, part: str, document: int) -> str:
        """Return "source:number", which names the document in every build that reads the same files."""
        tokens = self.part(part)
        source = self.sources[int(tokens.column("source")[document])]
        return f"{source}:{int(tokens.column('number')[document])}"


def load_corpus(path: Path, *, thorough: bool = False) -> BuiltCorpus:
    """Open a corpus. Lengths are checked always, every byte of the tokens only when `thorough`."""
    place = StoreDir(path)
    manifest = load_manifest(place)
    if manifest is None:
        raise NotFound(f"{path}: no finished corpus here", hint="`windlass corpus build` makes one")
    if TABLE not in manifest.files:
        raise BadInput(f"{path}: holds something other than a corpus", hint=f"a corpus has a {TABLE}")
    origin = load_origin(path)
    _check_lengths(path, manifest, partly=origin is not None)
    if thorough:
        verify(StoreDir(origin.url) if origin else place, manifest)
    table = json.loads(read_verified(place, TABLE, manifest))
    if table["format"] != FORMAT:
        raise Damaged(f"{path}: unknown corpus format {table['format']!r}", hint=f"known: {FORMAT}")
    cache = ShardCache(origin, content_digest(manifest), manifest.files) if origin else None
    return _opened(path, place, manifest, table, cache)


def _opened(
    path: Path, place: StoreDir, manifest: Manifest, table: dict[str, Any], cache: ShardCache | None
) -> BuiltCorpus:
    parts = _parts(path, manifest, table, cache)
    return BuiltCorpus(
        path=path,
        digest=content_digest(manifest),
        tokenizer=Tokenizer(
            read_verified(place, FILE, manifest),
            where=str(path / FILE),
            config=json.loads(read_verified(place, CONFIG, manifest)),
        ),
        train=parts[0],
        validation=parts[1],
        sources=tuple(json.loads(read_verified(place, "sources.json", manifest))),
        config=json.loads(read_verified(place, "config.json", manifest)),
        stats=table["stats"],
        cache=cache,
    )


def _parts(
    path: Path, manifest: Manifest, table: dict[str, Any], cache: ShardCache | None
) -> list[TokenPart]:
    kind = np.dtype(f"<u{table['token_bytes']}")
    records = [PartRecord(**table["parts"][name]) for name in PARTS]
    if cache is None:
        return [TokenPart(path / name, record, kind) for name, record in zip(PARTS, records, strict=True)]
    ahead = Ahead(cache)
    return [
        TokenPart(path / name, record, kind, CachedFiles(path, name, manifest, cache, ahead))
        for name, record in zip(PARTS, records, strict=True)
    ]


def content_digest(manifest: Manifest) -> str:
    """Digest the tokenizer and the parts; where the text came from and when does not matter."""
    files = {
        n: r.sha256 for n, r in manifest.files.items() if n in (FILE, CONFIG) or n.split("/")[0] in PARTS
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _check_lengths(path: Path, manifest: Manifest, *, partly: bool) -> None:
    """Compare what is here with the manifest; `partly` when large files may still be on a store."""
    for name, record in manifest.files.items():
        try:
            length = (path / name).stat().st_size
        except FileNotFoundError:
            if partly and is_large(name):
                continue
            raise Damaged(f"{path / name}: missing", hint="build the corpus again") from None
        if length != record.bytes:
            raise Damaged(
                f"{path / name}: {length} bytes, but {record.bytes} were written",
                hint="build the corpus again",
            )
