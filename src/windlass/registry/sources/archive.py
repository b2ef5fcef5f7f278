"""Unpacks archives of models, from anywhere: tar (plain, gzip, zstd), zip and wheels.

Every entry is checked before anything of it is written, and entries that no import reads are only counted:

- names are relative, without "..", backslashes or control characters, and occur once;
- entries are plain files or directories: links, devices, pipes and sparse files are refused;
- their number, the bytes that come out, and those bytes per byte of the archive are bounded. What counts are
  the bytes that were really unpacked, not those that a header declares.

`unpack` writes into a new directory, which its caller removes if it fails.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, Self

import zstandard

from windlass.registry.sources.needed import may_be_needed
from windlass.spec.errors import BadInput, Damaged, StoreFailed
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.spec.units import format_bytes
from windlass.store.store_dir import translate_os_errors

CHUNK = 1 << 20
EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
MAX_EXTENDED = 1 << 16
"""Bytes of a tar header that holds a long name; tarfile reads it into memory as a whole."""
MAX_NAME_BYTES, MAX_DEPTH = 1024, 16
ENCRYPTED = 0x1
BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError,
    EOFError, ValueError, OverflowError, RecursionError, RuntimeError, IndexError, struct.error,
)  # fmt: skip
"""What the readers of archives raise when bytes are not as the format says."""


@dataclass(frozen=True)
class UnpackLimits:
    """What an archive may hold."""

    entries: int = 20_000
    bytes: int = 1 << 40
    ratio: float = 60.0
    """Bytes out per byte in. Weights shrink by a few per cent, a tokenizer.json to a tenth."""
    free_bytes: int = 64 << 20
    """So much may come out at any ratio."""
    keep_free: int = 1 << 30
    """Bytes of the disk that are left free."""


def unpack(
    archive: Path, target: Path, *, limits: UnpackLimits | None = None, report: Report = silent
) -> None:
    """Unpack the files of a model into `target`, which must be empty or new."""
    target.mkdir(parents=True, exist_ok=True)
    limits = limits or UnpackLimits()
    meter = _Meter(archive, limits, shutil.disk_usage(target).free - limits.keep_free, report)
    read = _zip_entries if archive.name.lower().endswith((".zip", ".whl")) else _tar_entries
    with ExitStack() as stack:
        try:
            for entry in read(archive, meter, stack):
                _take(entry, target, meter)
        except BROKEN as error:
            raise _damaged(archive, error) from None
    if not meter.entries:
        raise BadInput(f"{archive}: the archive is empty")
    report(Progress("unpack", meter.bytes, meter.bytes, "B"))


class _Readable(Protocol):
    """The bytes of one entry."""

    def read(self, size: int = -1, /) -> bytes: ...

    def close(self) -> None: ...


@dataclass
class _Entry:
    """One entry of an archive, before it was read."""

    name: str
    kind: str
    """file, directory, or the word for what is refused."""
    declared: int
    open: Callable[[], _Readable]
    """Opens the bytes of a file; reading them counts them."""


@dataclass
class _Meter:
    """Counts what came out of an archive, and raises at a limit."""

    archive: Path
    limits: UnpackLimits
    free: int
    report: Report
    entries: int = 0
    bytes: int = 0
    names: set[str] = field(default_factory=set)
    packed: int = field(init=False)

    def __post_init__(self) -> None:
        self.packed = max(1, self.archive.stat().st_size)

    def entry(self, entry: _Entry) -> None:
        """Check one entry by its header."""
        self.entries += 1
        if self.entries > self.limits.entries:
            raise BadInput(f"{self.archive}: has more than {self.limits.entries} entries")
        name = _checked_name(entry.name, self.archive)
        if entry.kind not in ("file", "directory"):
            raise BadInput(
                f"{self.archive}: '{entry.name}' is {entry.kind}",
                hint="archives hold plain files and directories",
            )
        if entry.kind == "file":
            if name in self.names:
                raise BadInput(f"{self.archive}: '{entry.name}' occurs twice")
            self.names.add(name)
        if entry.declared < 0:
            raise BadInput(f"{self.archive}: '{entry.name}' declares a negative length")
        self._bounded(self.bytes + entry.declared)

    def took(self, count: int) -> None:
        """Count bytes that came out."""
        self.bytes += count
        self._bounded(self.bytes)
        self.report(Progress("unpack", self.bytes, unit="B"))

    def _bounded(self, total: int) -> None:
        limits = self.limits
        if total > limits.bytes:
            raise BadInput(f"{self.archive}: unpacks to more than {format_bytes(limits.bytes)}")
        if total > max(limits.free_bytes, limits.ratio * self.packed):
            raise BadInput(
                f"{self.archive}: unpacks to more than {limits.ratio:g} times its size "
                f"({format_bytes(self.packed)})",
                hint="if you trust it, unpack it and import the directory",
            )
        if total > self.free:
            raise StoreFailed(
                f"{self.archive}: unpacks to more than is free on the disk", hint="free some space first"
            )


def _take(entry: _Entry, target: Path, meter: _Meter) -> None:
    """Check an entry, and write it if an import may read it."""
    meter.entry(entry)
    if entry.kind == "directory" or not may_be_needed(entry.name):
        return
    path = target.joinpath(*_parts(entry.name))
    with translate_os_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out, closing(entry.open()) as source:
            shutil.copyfileobj(source, out, CHUNK)


def _checked_name(name: str, archive: Path) -> str:
    """Return the canonical form of a name; raise if it points elsewhere."""
    parts = _parts(name)
    if name.startswith("/") or name[1:2] == ":":
        problem = "is an absolute name"
    elif ".." in parts:
        problem = "points out of its directory"
    elif "\\" in name or any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        problem = "has a backslash or a control character"
    elif len(name.encode(errors="replace")) > MAX_NAME_BYTES or len(parts) > MAX_DEPTH:
        problem = "is too long or too deep"
    else:
        return "/".join(parts).casefold()
    raise BadInput(
        f"{archive}: the name {name[:80]!r} {problem}", hint="do not use an archive that tries this"
    )


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _tar_entries(archive: Path, meter: _Meter, stack: ExitStack) -> Iterator[_Entry]:
    raw = stack.enter_context(archive.open("rb"))
    # Bytes are counted as they leave the decompressor, so those of skipped entries count as well.
    stream: Any = _Counted(_decompressed(raw, archive.name.lower()), meter)
    with closing(tarfile.open(fileobj=stream, mode="r|", tarinfo=_CheckedHeader, errorlevel=2)) as tar:
        for member in tar:
            yield _Entry(member.name, _kind_of(member), member.size, partial(_open_in_tar, tar, member))


def _open_in_tar(tar: tarfile.TarFile, member: tarfile.TarInfo) -> _Readable:
    source = tar.extractfile(member)
    assert source is not None, "only of plain files"
    return source


def _kind_of(member: tarfile.TarInfo) -> str:
    if member.issparse():
        return "a sparse file"
    if member.isreg():
        return "file"
    if member.isdir():
        return "directory"
    if member.issym() or member.islnk():
        return f"a link to '{member.linkname[:80]}'"
    return (
        "a device"
        if member.isdev() and not member.isfifo()
        else "a pipe"
        if member.isfifo()
        else "of an unknown kind"
    )


class _CheckedHeader(tarfile.TarInfo):
    """A header whose extensions are small, since tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in EXTENDED and not 0 <= header.size <= MAX_EXTENDED:
            raise BadInput(
                f"a header of {format_bytes(header.size)} in the archive",
                hint="a name needs a few hundred bytes",
            )
        return header


def _decompressed(raw: IO[bytes], name: str) -> _Readable:
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=raw)
    if name.endswith(".zst"):
        window = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return window.stream_reader(raw, read_across_frames=True)
    return raw


class _Counted:
    """A stream that counts what is read from it, so that a bomb ends at the limit, wherever it is."""

    def __init__(self, source: _Readable, meter: _Meter) -> None:
        self._source, self._meter = source, meter

    def close(self) -> None:
        self._source.close()

    def read(self, size: int = -1) -> bytes:
        try:
            data = self._source.read(size)
        except BROKEN as error:
            raise _damaged(self._meter.archive, error) from None
        self._meter.took(len(data))
        return data


def _zip_entries(archive: Path, meter: _Meter, stack: ExitStack) -> Iterator[_Entry]:
    opened = stack.enter_context(zipfile.ZipFile(archive))
    for info in opened.infolist():
        yield _Entry(
            info.orig_filename, _kind_in_zip(info), info.file_size, partial(_open_in_zip, opened, info, meter)
        )


def _open_in_zip(opened: zipfile.ZipFile, info: zipfile.ZipInfo, meter: _Meter) -> _Readable:
    return _Counted(opened.open(info), meter)


def _kind_in_zip(info: zipfile.ZipInfo) -> str:
    """Read the kind of a zip entry; the upper half of external_attr is the mode where Unix made it."""
    mode = info.external_attr >> 16
    if info.flag_bits & ENCRYPTED:
        return "encrypted"
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "a device or a pipe"
    return "directory" if info.is_dir() else "file"


def _damaged(archive: Path, error: Exception) -> Damaged:
    return Damaged(
        f"{archive}: not readable as an archive: {error}",
        hint="it was cut off or changed on its way, or its name has the wrong ending; fetch it again",
    )
