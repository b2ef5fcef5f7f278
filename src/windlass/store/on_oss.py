"""Alibaba's object store (OSS), with atomic writes.

ossfs writes a file by removing it and appending to it piece by piece, so that readers see parts of it, and a
writer that dies leaves one. Here written bytes are collected on local disk and put as a whole. Credentials
come from the environment, by the names that Alibaba's own tools use.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, Any

import oss2
from ossfs import OSSFileSystem

VARIABLES = {"key": "OSS_ACCESS_KEY_ID", "secret": "OSS_ACCESS_KEY_SECRET", "token": "OSS_SESSION_TOKEN"}
PUT_BYTES = 64 << 20
"""Longer files are sent as multipart uploads, whose parts may be retried separately."""


class Oss(OSSFileSystem):  # type: ignore[misc]
    """A file system with atomic writes."""

    def __init__(self, **options: Any) -> None:
        known = {name: os.environ[variable] for name, variable in VARIABLES.items() if variable in os.environ}
        super().__init__(**{**known, **options})

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **options: Any) -> Any:
        if "w" not in mode:
            return super()._open(path, mode, autocommit=autocommit, **options)
        return _Collected(self, path, autocommit=autocommit)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Put a file; with mode `create`, the server refuses if the file exists."""
        bucket, name = self.split_path(path)
        headers = {"x-oss-forbid-overwrite": "true"} if mode == "create" else {}
        self._call_oss("put_object", name, value, bucket=bucket, headers=headers)
        self.invalidate_cache(self._parent(path))

    def _call_oss(self, *args: Any, **options: Any) -> Any:
        """Raise the usual error classes for refusals: ossfs knows few of the server's codes."""
        try:
            return super()._call_oss(*args, **options)
        except OSError as error:
            status = getattr(error.__cause__, "status", None)
            if status == 403:
                raise PermissionError(args[0]) from None
            if status == 409:
                raise FileExistsError(args[0]) from None
            raise


class _Collected:
    """A file that is collected on local disk and put when it is committed."""

    def __init__(self, fs: Oss, path: str, *, autocommit: bool) -> None:
        self._fs, self._path, self._autocommit = fs, path, autocommit
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(prefix="windlass-oss-")  # noqa: SIM115

    def __enter__(self) -> _Collected:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.flush()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        bucket, name = self._fs.split_path(self._path)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if size <= PUT_BYTES:
            self._fs._call_oss("put_object", name, self._file.read(), bucket=bucket)
        else:
            self._put_parts(bucket, name, size)
        self._fs.invalidate_cache(self._fs._parent(self._path))
        self._file.close()

    def discard(self) -> None:
        self._file.close()

    def _put_parts(self, bucket: str, name: str, size: int) -> None:
        upload = self._fs._call_oss("init_multipart_upload", name, bucket=bucket).upload_id
        parts = []
        for number in range(1, -(-size // PUT_BYTES) + 1):
            data = self._file.read(PUT_BYTES)
            done = self._fs._call_oss("upload_part", name, upload, number, data, bucket=bucket)
            parts.append(oss2.models.PartInfo(number, done.etag, size=len(data), part_crc=done.crc))
        self._fs._call_oss("complete_multipart_upload", name, upload, parts, bucket=bucket)
