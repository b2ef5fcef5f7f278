"""A double of Alibaba's object store: the part of its REST protocol that ossfs speaks, signatures checked.

No server of OSS can be had outside Alibaba's cloud. What is here follows its published API: objects become
visible when a put or a multipart upload is complete, `x-oss-forbid-overwrite` refuses with 409, listings are
consistent. It shows that our code and oss2 agree with that page, not that the service behaves so.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

KEY, SECRET, BUCKET = "windlass", "windlass-oss-secret", "bucket"
SIGNED = {"uploads", "uploadId", "partNumber", "delete", "append", "position", "objectMeta", "bucketInfo"}
"""Parameters that belong to the resource that is signed."""

BUCKET_INFO = (
    f"<Bucket><Name>{BUCKET}</Name><CreationDate>2026-01-01T00:00:00.000Z</CreationDate>"
    "<ExtranetEndpoint/><IntranetEndpoint/><Location/><StorageClass>Standard</StorageClass>"
    "<Owner><DisplayName/><ID/></Owner><AccessControlList><Grant>private</Grant></AccessControlList></Bucket>"
)


class OssDouble(ThreadingHTTPServer):
    """Listens on a free port; `objects` is all it holds."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OssDouble
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._meet()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing to say."""

    def _meet(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        self.resource = urllib.parse.unquote(parts.path)
        bucket, _, self.name = self.resource.lstrip("/").partition("/")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._is_signed():
            self._refuse(403, "SignatureDoesNotMatch")
        elif bucket != BUCKET:
            self._refuse(404, "NoSuchBucket")
        else:
            with self.server.turn:
                self._answer()

    def _is_signed(self) -> bool:
        extra = sorted((k.lower(), v) for k, v in self.headers.items() if k.lower().startswith("x-oss-"))
        named = "&".join(f"{k}={v}" if v else k for k, v in sorted(self.query.items()) if k in SIGNED)
        bucket, _, name = self.resource.lstrip("/").partition("/")
        lines = [
            self.command,
            self.headers.get("Content-MD5", ""),
            self.headers.get("Content-Type", ""),
            self.headers.get("Date", ""),
            *(f"{k}:{v}" for k, v in extra),
            f"/{bucket}/{name}" + (f"?{named}" if named else ""),
        ]
        digest = hmac.new(SECRET.encode(), "\n".join(lines).encode(), hashlib.sha1).digest()
        wanted = f"OSS {KEY}:{base64.b64encode(digest).decode()}"
        return hmac.compare_digest(self.headers.get("Authorization", ""), wanted)

    def _answer(self) -> None:
        if "bucketInfo" in self.query:
            self._reply(200, _element("BucketInfo", BUCKET_INFO))
        elif self.command in ("GET", "HEAD"):
            self._read() if self.name else self._list()
        elif self.command == "PUT":
            self._put()
        elif self.command == "DELETE":
            self.server.objects.pop(self.name, None)
            self._reply(204)
        elif "delete" in self.query:
            for part in self.body.decode().split("<Key>")[1:]:
                name = part.partition("</Key>")[0]
                self.server.objects.pop(urllib.parse.unquote(name), None)
            self._reply(200, b"<DeleteResult></DeleteResult>")
        else:
            self._upload()

    def _put(self) -> None:
        if "uploadId" in self.query:
            self.server.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
        elif self.headers.get("x-oss-forbid-overwrite") == "true" and self.name in self.server.objects:
            return self._refuse(409, "FileAlreadyExists")
        else:
            self.server.objects[self.name] = self.body
        return self._reply(200, tag=_tag(self.body))

    def _upload(self) -> None:
        if "uploads" in self.query:
            number = str(len(self.server.uploads) + 1)
            self.server.uploads[number] = {}
            told = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.name)}</Key><UploadId>{number}</UploadId>"
            self._reply(
                200, f"<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>".encode()
            )
        else:
            parts = self.server.uploads.pop(self.query["uploadId"])
            self.server.objects[self.name] = b"".join(data for _, data in sorted(parts.items()))
            tag = _tag(self.server.objects[self.name])
            self._reply(200, _element("CompleteMultipartUploadResult", f"<ETag>{tag}</ETag>"), tag=tag)

    def _read(self) -> None:
        data = self.server.objects.get(self.name)
        if data is None:
            return self._refuse(404, "NoSuchKey")
        span = self.headers.get("Range", "")
        if not span:
            return self._reply(200, data, tag=_tag(data))
        first, _, last = span.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        where = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self._reply(206, part, tag=_tag(data), more={"Content-Range": where})

    def _list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        names = [name for name in sorted(self.server.objects) if name.startswith(prefix)]
        folders: dict[str, None] = {}
        listed = ""
        for name in names:
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders[prefix + head + delimiter] = None
                continue
            data = self.server.objects[name]
            listed += (
                f"<Contents><Key>{_coded(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            )
            listed += f"<ETag>{_tag(data)}</ETag><Type>Normal</Type><Size>{len(data)}</Size>"
            listed += "<StorageClass>Standard</StorageClass></Contents>"
        listed += "".join(f"<CommonPrefixes><Prefix>{_coded(f)}</Prefix></CommonPrefixes>" for f in folders)
        head_text = f"<Name>{BUCKET}</Name><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
        self._reply(200, _element("ListBucketResult", head_text + listed))

    def _refuse(self, status: int, code: str) -> None:
        told = f"<Error><Code>{code}</Code><Message>{code}</Message><RequestId>1</RequestId></Error>"
        self._reply(status, told.encode())

    def _reply(
        self, status: int, body: bytes = b"", *, tag: str = "", more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-oss-request-id", "1")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        for name, value in {**({"ETag": tag} if tag else {}), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _element(name: str, told: str) -> bytes:
    return f"<{name}>{told}</{name}>".encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest().upper()}"'


def _coded(name: str) -> str:
    return urllib.parse.quote(name, safe="")
