"""Fetches a model from a repository of a hub: only the files that an import reads, each one checked.

Both hubs list the files of a revision with their lengths and digests. The small files come first, because the
index of the weights says which shards belong to the model. Every file is checked against the digest of the
list, in addition to the checks of the client library, and one that differs is removed, so that running the
command again fetches it anew. Files that are whole stay where they are until the import is finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from windlass.registry.sources.download import watched
from windlass.registry.sources.model_source import ModelSource
from windlass.registry.sources.needed import (
    INDEX,
    chosen_file,
    only_gguf,
    parts_of,
    small_files,
    weight_files,
)
from windlass.registry.sources.repository import HubFile, HubRepository
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.protocol.progress import Report
from windlass.store.store_dir import translate_os_errors

EXTRA = "pip install 'windlass[hub]'"


def open_repository(address: ModelSource) -> HubRepository:
    """Connect to the hub of an address and list its files. Only now is the client library imported."""
    try:
        if address.kind == "hf":
            from windlass.registry.sources.on_huggingface import HuggingFaceRepository

            return HuggingFaceRepository(address)
        from windlass.registry.sources.on_modelscope import ModelScopeRepository

        return ModelScopeRepository(address)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{address.text}: the client library of this hub, {error.name}, is not installed", hint=EXTRA
        ) from None


def fetch_model(repository: HubRepository, address: ModelSource, folder: Path, report: Report) -> Path:
    """Fetch the files of a model; return their directory, or the path of a single file."""
    files = {file.name: file for file in repository.files}
    for name in files:
        _check_name(name, address)
    single = address.file or only_gguf(files, address.text)
    if single is not None:
        parts = parts_of(chosen_file(files, single, address.text), files)
        _fetch(repository, [files[name] for name in parts], folder, report)
        return folder / single
    small = [files[name] for name in small_files(files)]
    _fetch(repository, small, folder, report)
    index = (folder / INDEX).read_bytes() if INDEX in files else None
    weights = [files[name] for name in weight_files(files, index, address.text)]
    _fetch(repository, weights, folder, report)
    return folder


def digest_problem(path: Path, file: HubFile) -> str | None:
    """Return what differs between a file on this disk and the hub's list; None if nothing does."""
    if not path.is_file():
        return "did not arrive"
    if path.stat().st_size != file.bytes:
        return f"has {path.stat().st_size} bytes instead of {file.bytes}"
    if file.sha256 is not None and _digest(path, hashlib.sha256()) != file.sha256:
        return "has another sha256"
    if file.sha256 is None and file.git_sha1 is not None:
        # git digests a header and the content.
        header = hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)
        if _digest(path, header) != file.git_sha1:
            return "has another git digest"
    return None


def _fetch(repository: HubRepository, files: Sequence[HubFile], folder: Path, report: Report) -> None:
    missing = [file for file in files if digest_problem(folder / file.name, file) is not None]
    with translate_os_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    before = sum(file.bytes for file in files if file not in missing)
    total = before + sum(file.bytes for file in missing)
    with watched(folder, total, report):
        for file in missing:
            repository.fetch(file, folder)
    for file in missing:
        problem = digest_problem(folder / file.name, file)
        if problem is not None:
            (folder / file.name).unlink(missing_ok=True)
            raise Damaged(
                f"{file.name}: the file {problem} than the hub lists",
                hint="it was removed; run the same command again to fetch it anew",
            )


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _check_name(name: str, address: ModelSource) -> None:
    """Refuse a list that would write elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise BadInput(f"{address.text}: its list of files has the name {name[:80]!r}")
