"""A part on a store: tokens come through the cache, the table of documents is downloaded on demand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.corpus.remote.cache import ShardCache
from windlass.corpus.remote.prefetch import Ahead
from windlass.corpus.remote.published import fetch
from windlass.corpus.shards import DOCUMENTS, Ints, LocalFiles, shard_name
from windlass.spec.errors import Damaged
from windlass.store.manifest import Manifest
from windlass.store.store_dir import StoreDir


@dataclass(frozen=True)
class CachedShard:
    """One token file. A read copies, so that the file can be evicted again at once."""

    cache: ShardCache
    name: str
    tokens: int
    kind: np.dtype[Any]

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, where: slice) -> Ints:
        start, stop, _ = where.indices(self.tokens)
        begin, wanted = start * self.kind.itemsize, (stop - start) * self.kind.itemsize
        with self.cache.opened(self.name) as file:
            data = os.pread(file.fileno(), wanted, begin)
        if len(data) != wanted:
            raise Damaged(
                f"{self.cache.origin.folder}: the cached {self.name} was cut short", hint="remove it"
            )
        return np.frombuffer(data, dtype=self.kind)


class CachedFiles:
    """The files of one part of an adopted corpus; `folder` is that corpus's own directory."""

    def __init__(self, folder: Path, part: str, manifest: Manifest, cache: ShardCache, ahead: Ahead) -> None:
        self._folder, self._part, self._manifest = folder, part, manifest
        self._cache, self._ahead = cache, ahead

    def shard(self, number: int, tokens: int, kind: np.dtype[Any]) -> CachedShard:
        return CachedShard(self._cache, self._name(number), tokens, kind)

    def documents(self, rows: int) -> npt.NDArray[np.uint64]:
        """Download the table, which training never reads, into the corpus's directory, outside the cache."""
        name = f"{self._part}/{DOCUMENTS}"
        if not (self._folder / name).exists():
            with StoreDir(self._folder).writing(name) as file:
                fetch(self._cache.origin.url, name, self._manifest.files[name], file)
        return LocalFiles(self._folder / self._part).documents(rows)

    def expect(self, numbers: Sequence[int]) -> None:
        self._ahead.expect([self._name(number) for number in numbers])

    def _name(self, number: int) -> str:
        return f"{self._part}/{shard_name(number)}"
