"""A directory at any URL: file, s3, oss, hdfs, gs, memory.

This is the only module that uses fsspec. Writes are atomic: local files are written under a temporary name,
synced and renamed; object stores make a put visible only when it is complete.
"""

from __future__ import annotations

import errno
import importlib
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from windlass.spec.errors import BadInput, NotFound, StoreFailed, WindlassError

EXTRAS = {
    "s3": "s3", "s3a": "s3", "oss": "oss", "gs": "gcs", "gcs": "gcs", "http": "hub", "https": "hub",
}  # fmt: skip
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "oss", "memory", "webhdfs"})
"""Protocols whose puts are atomic without an fsspec transaction."""
DIALECTS = {"oss": ("windlass.store.on_oss", "Oss"), "webhdfs": ("windlass.store.on_webhdfs", "WebHdfs")}
"""Our own file systems, for protocols whose fsspec library does not write atomically."""
FOREIGN = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("oss2.exceptions", "OssError"),
    ("gcsfs.retry", "HttpError"),
)
"""Errors, other than OSError, that libraries raise when a store does not answer or answers with an error."""

_TRANSACTION = threading.RLock()
"""fsspec transactions belong to a file system, which all threads of a process share: one at a time."""


@dataclass(frozen=True)
class StoredFile:
    """A file in a store: its URL, length, and a mark that changes when its content may have."""

    url: str
    bytes: int
    mark: str


class StoreDir:
    """A directory at a URL. Names are relative, with forward slashes."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = str(url).rstrip("/") or "/"
        self._fs, self.root = _resolve(self.url)

    def __repr__(self) -> str:
        return f"Place({self.url!r})"

    @property
    def local(self) -> Path | None:
        """The directory on this machine's disk, or None when it is elsewhere."""
        return Path(self.root) if _is_local(self._fs) else None

    def sub(self, name: str) -> StoreDir:
        return StoreDir(f"{self.url}/{name}")

    def exists(self, name: str) -> bool:
        with translate_os_errors(self._at(name)):
            return bool(self._fs.exists(self._at(name)))

    def read(self, name: str) -> bytes:
        if _protocol(self._fs) in OBJECT_STORES:  # one request, where opening asks for the length first
            with translate_os_errors(f"{self.url}/{name}"):
                return bytes(self._fs.cat_file(self._at(name)))
        with self.reading(name) as file:
            return file.read()

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        with translate_os_errors(f"{self.url}/{name}"), self._fs.open(self._at(name), "rb") as file:
            yield file

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file; a reader sees the old one or the new one, never a part."""
        if _protocol(self._fs) in OBJECT_STORES:
            with translate_os_errors(f"{self.url}/{name}"):
                self._fs.pipe_file(self._at(name), data)
            return
        with self.writing(name) as file:
            file.write(data)

    def create(self, name: str, data: bytes) -> bool:
        """Create a whole file; returns False if it exists. Of several concurrent callers one gets True."""
        path = self._at(name)
        with translate_os_errors(f"{self.url}/{name}"):
            try:
                if _is_local(self._fs):
                    _local_create(Path(path), data)
                else:
                    self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:  # s3fs reports a failed put condition like this
                if error.errno == errno.EINVAL and self._fs.exists(path):
                    return False
                raise
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file to write to; it appears under its name when the block ends without an error."""
        path = self._at(name)
        with translate_os_errors(f"{self.url}/{name}"):
            if _is_local(self._fs):
                with _local_writing(Path(path)) as file:
                    yield file
            else:
                with _TRANSACTION, self._fs.transaction, self._fs.open(path, "wb") as file:
                    yield file

    def names(self, prefix: str = "") -> list[str]:
        """List the files under `prefix`, at any depth, without the leftovers of unfinished writes."""
        return list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the files under `prefix` as `names` does, with their lengths."""
        path = self._at(prefix) if prefix else self.root
        with translate_os_errors(self.url):
            self._fs.invalidate_cache()
            found = self._fs.find(path, detail=True)
        if not found.get(path, {"size": 1})["size"]:
            del found[path]  # some servers show a folder that became empty as a file without bytes
        base = self.root.rstrip("/") + "/"
        sizes = {p[len(base) :] if p.startswith(base) else p.lstrip("/"): i["size"] for p, i in found.items()}
        return {name: int(size) for name, size in sorted(sizes.items()) if ".part-" not in name}

    def folders(self) -> list[str]:
        """List the directories one level down."""
        with translate_os_errors(self.url):
            self._fs.invalidate_cache()
            if not self._fs.exists(self.root):
                return []
            entries = self._fs.ls(self.root, detail=True)
        return sorted(e["name"].rstrip("/").rsplit("/", 1)[-1] for e in entries if e["type"] == "directory")

    def remove(self, name: str = "") -> None:
        """Remove a file or a tree; nothing happens when it is not there."""
        path = self._at(name) if name else self.root
        with translate_os_errors(path):
            if self._fs.exists(path):
                self._fs.rm(path, recursive=True)

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to local disk, atomically."""
        with (
            translate_os_errors(f"{self.url}/{name}"),
            self._fs.open(self._at(name), "rb") as source,
            _local_writing(target) as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


def find(source: str) -> list[StoredFile]:
    """List the files that a path, a directory, a glob or a store URL names, in a fixed order."""
    fs, path = _resolve(source)
    with translate_os_errors(source):
        if fs.isdir(path):
            found = fs.find(path, detail=True)
        elif any(c in path for c in "*?["):
            found = {p: i for p, i in fs.glob(path, detail=True).items() if i["type"] == "file"}
        elif fs.exists(path):
            found = {path: fs.info(path)}
        else:
            raise NotFound(f"{source}: no such file, directory or URL")
    return [
        StoredFile(_whole_url(fs, source, p), int(info.get("size") or 0), _mark(info))
        for p, info in sorted(found.items())
    ]


def stat(url: str) -> StoredFile:
    """Look up one file at any URL, without listing what is around it."""
    fs, path = _resolve(url)
    with translate_os_errors(url):
        try:
            info = fs.info(path)
        except FileNotFoundError as error:
            # fsspec says so of any HTTP request that failed, even where no server answered.
            cause = error.__cause__
            if isinstance(cause, _foreign_errors()) and getattr(cause, "status", None) not in (404, 410):
                raise cause from None
            raise
    return StoredFile(url, int(info.get("size") or 0), _mark(info))


def load_library(url: str) -> None:
    """Import the library for a URL without connecting. A missing library is reported at the first use."""
    import fsspec

    with suppress(ImportError, ValueError):
        fsspec.get_filesystem_class(url.partition("://")[0] if "://" in url else "file")


def forget_servers() -> None:
    """Clear fsspec's cache, so that new file systems read address and credentials from the environment again.

    fsspec keeps a file system for as long as the process lives, with the address that it had at first.
    """
    import fsspec

    for kind in fsspec.registry.values():
        kind.clear_instance_cache()


@contextmanager
def opened(url: str) -> Iterator[IO[bytes]]:
    """Open one file at any URL for reading bytes."""
    fs, path = _resolve(url)
    with translate_os_errors(url), fs.open(path, "rb") as file:
        yield file


def _whole_url(fs: Any, source: str, path: str) -> str:
    """Return the URL of a path that was found; if paths do not include the server, it is that of `source`."""
    if _is_local(fs):
        return path
    if _protocol(fs) in ("hdfs", "webhdfs"):
        kind, _, rest = source.partition("://")
        return f"{kind}://{rest.partition('/')[0]}{path}"
    if _protocol(fs) == "oss":  # its paths begin with a slash, which its URLs must not
        return f"oss://{path.lstrip('/')}"
    return str(fs.unstrip_protocol(path))


def _mark(info: dict[str, Any]) -> str:
    for key in ("ETag", "etag", "md5", "mtime", "LastModified", "modificationTime", "created"):
        if info.get(key):
            return str(info[key])
    return ""


def _resolve(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        if protocol in DIALECTS:
            _teach(protocol)
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        hint = f"pip install 'windlass[{extra}]'" if extra else str(error)
        raise BadInput(f"{url}: the library for {protocol}:// is not installed", hint=hint) from None
    except OSError:
        if protocol != "hdfs":
            raise
        raise BadInput(
            f"{url}: Hadoop's native library (libhdfs, with Java) is not installed",
            hint="webhdfs://USER@HOST:9870/PATH needs none",
        ) from None
    except ValueError as error:
        raise BadInput(f"{url}: {error}", hint="known: file, s3, oss, gs, hdfs, webhdfs, memory") from None
    return fs, str(path)


def _teach(protocol: str) -> None:
    import fsspec

    module, name = DIALECTS[protocol]
    fsspec.register_implementation(protocol, getattr(importlib.import_module(module), name), clobber=True)


def _is_local(fs: Any) -> bool:
    return _protocol(fs) == "file"


def _protocol(fs: Any) -> str:
    return str(fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0])


@contextmanager
def _local_writing(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _local_create(path: Path, data: bytes) -> None:
    """A hard link appears with its whole content, or fails because the name is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that renames in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def translate_os_errors(where: str) -> Iterator[None]:
    """Turn an error of a library into a WindlassError with the location and a hint."""
    try:
        yield
    except WindlassError:
        raise
    except FileNotFoundError:
        raise NotFound(f"{where}: no such file or directory") from None
    except PermissionError:
        raise StoreFailed(f"{where}: no permission", hint="check the owner and the credentials") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFailed(
                f"{where}: no space left on the device",
                hint="nothing that was finished is lost; free some space and run the same command again",
            ) from None
        raise StoreFailed(f"{where}: {error.strerror or error}") from error
    except _foreign_errors() as error:
        raise StoreFailed(
            f"{where}: cannot be reached: {error}", hint="check the address, the network and the credentials"
        ) from error


def _foreign_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of libraries that are loaded: only these can have been raised."""
    found = ((sys.modules.get(module), name) for module, name in FOREIGN)
    return tuple(getattr(module, name) for module, name in found if hasattr(module, name))
