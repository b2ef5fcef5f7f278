"""A double of HDFS's REST interface (WebHDFS), by its published page: a name node that sends to a data node.

No name node can be had here (Debian and PyPI carry none). Renames answer `false` where the name is taken or
the directory is missing, as HDFS's do, unless `renameoptions=OVERWRITE` is asked for. Files grow by appends.
"""

from __future__ import annotations

import json
import posixpath
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER = "windlass"


class WebHdfsDouble(ThreadingHTTPServer):
    """Listens on a free port. `files` maps paths to bytes, or to None for a directory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes | None] = {"/": None, "/tmp": None}
        self.turn = threading.RLock()

    @property
    def url(self) -> str:
        return f"webhdfs://{USER}@127.0.0.1:{self.server_port}"

    def below(self, path: str) -> list[str]:
        return [name for name in self.files if name.startswith(path.rstrip("/") + "/") and name != "/"]

    def make(self, path: str) -> None:
        while path not in self.files:
            self.files[path] = None
            path = posixpath.dirname(path)


class _Handler(BaseHTTPRequestHandler):
    server: WebHdfsDouble
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query))
        node, path = parts.path.split("/v1", 1)
        self.name = urllib.parse.unquote(path).rstrip("/") or "/"
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.query.get("user.name") != USER and node == "/webhdfs":
            return self._refuse(403, "AccessControlException", f"Permission denied: {self.name}")
        with self.server.turn:
            return getattr(self, f"_{self.query['op'].lower()}")(node == "/data")

    do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing to say."""

    def _getfilestatus(self, _: bool) -> None:
        if self.name not in self.server.files:
            return self._missing()
        return self._json({"FileStatus": self._status(self.name)})

    def _liststatus(self, _: bool) -> None:
        if self.name not in self.server.files:
            return self._missing()
        inside = [name for name in self.server.below(self.name) if posixpath.dirname(name) == self.name]
        listed = [{**self._status(name), "pathSuffix": posixpath.basename(name)} for name in inside]
        return self._json({"FileStatuses": {"FileStatus": listed or self._itself()}})

    def _itself(self) -> list[dict[str, Any]]:
        return [] if self.server.files[self.name] is None else [self._status(self.name)]

    def _open(self, is_data: bool) -> None:
        data = self.server.files.get(self.name)
        if data is None:
            return self._missing()
        if not is_data:
            return self._send_on()
        offset = int(self.query.get("offset", 0))
        length = int(self.query.get("length", len(data)))
        return self._reply(200, data[offset : offset + length])

    def _create(self, is_data: bool) -> None:
        if not is_data:
            return self._send_on()
        self.server.make(posixpath.dirname(self.name))
        self.server.files[self.name] = self.body
        return self._reply(201)

    def _append(self, is_data: bool) -> None:
        if not is_data:
            return self._send_on()
        self.server.files[self.name] = (self.server.files[self.name] or b"") + self.body
        return self._reply(200)

    def _mkdirs(self, _: bool) -> None:
        self.server.make(self.name)
        self._json({"boolean": True})

    def _rename(self, _: bool) -> None:
        files, target = self.server.files, self.query["destination"]
        over = "OVERWRITE" in self.query.get("renameoptions", "")
        ready = self.name in files and posixpath.dirname(target) in files
        if over and not ready:
            return self._missing()
        if not ready or (target in files and not over):
            return self._json({"boolean": False})
        files[target] = files.pop(self.name)
        return self._reply(200) if over else self._json({"boolean": True})

    def _delete(self, _: bool) -> None:
        found = self.name in self.server.files
        for name in [self.name, *self.server.below(self.name)]:
            self.server.files.pop(name, None)
        self._json({"boolean": found})

    def _status(self, name: str) -> dict[str, Any]:
        data = self.server.files[name]
        kind = "DIRECTORY" if data is None else "FILE"
        return {"type": kind, "length": len(data or b""), "pathSuffix": "", "modificationTime": 1767225600000}

    def _missing(self) -> None:
        self._refuse(404, "FileNotFoundException", f"File does not exist: {self.name}")

    def _refuse(self, status: int, kind: str, message: str) -> None:
        told = {"RemoteException": {"exception": kind, "message": message}}
        self._reply(status, json.dumps(told).encode())

    def _send_on(self) -> None:
        """The name node knows; a data node has the bytes."""
        here = f"http://127.0.0.1:{self.server.server_port}"
        self._reply(307, more={"Location": here + self.path.replace("/webhdfs/", "/data/", 1)})

    def _json(self, value: Any) -> None:
        self._reply(200, json.dumps(value).encode())

    def _reply(self, status: int, body: bytes = b"", more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
