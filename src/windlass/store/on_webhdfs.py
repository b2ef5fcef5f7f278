"""HDFS over its REST interface, with atomic writes.

fsspec's own client moves a finished file to its name by RENAME and ignores the reply: if the name is taken,
or its directory is missing, HDFS answers `false`, and the file is lost silently. This client makes the
directory first and uses the rename that overwrites; exclusive creation uses the one that does not.
"""

from __future__ import annotations

import errno
import secrets
from typing import Any

from fsspec.implementations.webhdfs import WebHDFS


class WebHdfs(WebHDFS):  # type: ignore[misc]
    """A file system with atomic writes."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self.tempdir = options.get("tempdir") or "/tmp"

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename, replacing an existing file."""
        self.mkdir(self._parent(path2))
        self._call("RENAME", method="put", path=path1, destination=path2, renameoptions="OVERWRITE")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write to a temporary name, then rename; with mode `create`, fail if the file exists."""
        part = f"{path}.part-{secrets.token_hex(8)}"
        self.mkdir(self._parent(path))
        try:
            with self.open(part, "wb") as file:
                file.write(value)
            if mode != "create":
                self.mv(part, path)
            elif not self._call("RENAME", method="put", path=part, destination=path).json().get("boolean"):
                raise FileExistsError(path)
        except BaseException:
            self.rm(part)
            raise

    def _call(self, op: str, *args: Any, **options: Any) -> Any:
        """Raise OSError for what the server refuses, as other stores do."""
        try:
            return super()._call(op, *args, **options)
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error)) from None
