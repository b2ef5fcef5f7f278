"""A corpus on a store: published by the machine that built it, read by all others.

    a whole corpus directory -> publish -> URL/KEY, the manifest last
    URL/KEY -> adopt -> a directory with every small file and origin.json, but without tokens

Such a directory is opened like any other (`corpus_dir`); origin.json says where its tokens are and how much
`cache` may keep of them. The format is docs/formats/corpus.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from windlass.corpus.shards import DOCUMENTS
from windlass.spec.errors import BadInput, Damaged, NotFound, StoreFailed, WindlassError
from windlass.spec.job import CacheSpec
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.units import format_bytes
from windlass.store.manifest import MANIFEST, FileRecord, load_manifest, read_verified
from windlass.store.store_dir import StoreDir, translate_os_errors

ORIGIN = "origin.json"
FORMAT = "windlass-origin-1"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Origin:
    """Where the tokens of an adopted corpus are, and how they are kept here."""

    url: str
    folder: str
    policy: str
    bytes: int
    prefetch: int

    def check(self, files: Mapping[str, FileRecord]) -> None:
        """Refuse a limit smaller than one shard."""
        largest = max((record.bytes for name, record in files.items() if is_shard(name)), default=0)
        if largest > self.bytes:
            raise BadInput(
                f"[corpus.cache] bytes: {format_bytes(self.bytes)} is less than one shard of {self.url}"
                f" ({format_bytes(largest)})",
                hint="give the cache room for many shards, or build the corpus with fewer shard_tokens",
            )


def origin_for(store: str, key: str, cache: CacheSpec, home: Path) -> Origin:
    folder = cache.folder or str(home / "cache")
    return Origin(f"{store.rstrip('/')}/{key}", folder, cache.policy, cache.bytes, cache.prefetch)


def load_origin(folder: Path) -> Origin | None:
    """Return where the tokens of a corpus are, or None when they are in its own directory."""
    try:
        data = json.loads((folder / ORIGIN).read_bytes())
        if data.pop("format") != FORMAT:
            raise Damaged(f"{folder / ORIGIN}: unknown format", hint=f"known: {FORMAT}")
        return Origin(**data)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{folder / ORIGIN}: not readable: {error}", hint="build the corpus again") from None


def save_origin(folder: Path, origin: Origin) -> None:
    body = json.dumps({"format": FORMAT, **asdict(origin)}, indent=1, ensure_ascii=False)
    StoreDir(folder).write(ORIGIN, (body + "\n").encode())


def settle(folder: Path, origin: Origin, report: Report) -> None:
    """Make a finished corpus match the job's store: publish it, or update its origin."""
    known = load_origin(folder)
    if known is None:
        publish(folder, origin.url, report)
    elif known.url != origin.url and not adopt(folder, origin):
        raise NotFound(
            f"{origin.url}: no such corpus; {folder} has its tokens at {known.url}",
            hint=f"name that store, or remove {folder} to build the corpus again",
        )
    elif known != origin:
        manifest = load_manifest(StoreDir(folder))
        origin.check(manifest.files if manifest else {})
        save_origin(folder, origin)


def publish(folder: Path, url: str, report: Report) -> None:
    """Copy a finished corpus to a store, unless it is there. An incomplete copy is written again."""
    with reached(url):
        source, target = StoreDir(folder), StoreDir(url)
        manifest = load_manifest(source)
        if manifest is None:
            raise NotFound(f"{folder}: no finished corpus here to publish")
        if load_manifest(target) is not None:
            return
        done = 0
        for name, record in manifest.files.items():
            with target.writing(name) as file:
                copy_verified(source, name, record, file, f"{url}/{name}")
            done += record.bytes
            report(Progress("publish", done, manifest.bytes, "B"))
        target.write(MANIFEST, source.read(MANIFEST))


def adopt(folder: Path, origin: Origin) -> bool:
    """Make `folder` a corpus whose tokens stay on the store; False when the store has no such corpus."""
    with reached(origin.url):
        source, target = StoreDir(origin.url), StoreDir(folder)
        manifest = load_manifest(source)
        if manifest is None:
            return False
        origin.check(manifest.files)
        for name in manifest.files:
            if not is_large(name):
                target.write(name, read_verified(source, name, manifest))
        save_origin(folder, origin)
        target.write(MANIFEST, source.read(MANIFEST))
    return True


def is_large(name: str) -> bool:
    """Whether a file is a token file or a table of documents: those stay on the store until read."""
    return name.endswith(".bin")


def is_shard(name: str) -> bool:
    return is_large(name) and not name.endswith(f"/{DOCUMENTS}")


def fetch(url: str, name: str, record: FileRecord, file: IO[bytes]) -> None:
    """Copy a file of the store into a local one that is open and empty. Wrong bytes are fetched once more."""
    with reached(url):
        place = StoreDir(url)
        try:
            copy_verified(place, name, record, file, file.name)
        except Damaged:
            file.seek(0)
            file.truncate()
            copy_verified(place, name, record, file, file.name)


def copy_verified(place: StoreDir, name: str, record: FileRecord, file: IO[bytes], target: str) -> None:
    """Copy a file; raise Damaged when the bytes differ from its manifest."""
    digest, length = hashlib.sha256(), 0
    try:
        with place.reading(name) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
                with translate_os_errors(
                    target
                ):  # otherwise a full local disk would be reported as a store error
                    file.write(chunk)
    except NotFound:
        raise Damaged(
            f"{place.url}/{name}: listed in {MANIFEST} but missing", hint="publish the corpus again"
        ) from None
    if length != record.bytes or digest.hexdigest() != record.sha256:
        raise Damaged(
            f"{place.url}/{name}: {length} bytes of digest {digest.hexdigest()[:12]}, but {record.bytes}"
            f" of digest {record.sha256[:12]} were written",
            hint="publish the corpus again",
        )


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Turn any error of a store's library into StoreFailed: these errors have no common base class."""
    try:
        yield
    except WindlassError:
        raise
    except Exception as error:
        raise StoreFailed(
            f"{url}: cannot be reached: {error}", hint="check the address, the network and the credentials"
        ) from error
