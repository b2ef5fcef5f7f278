"""A small real model, and servers on loopback that speak the protocols of both hubs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

WIDTH, VOCABULARY = 16, 64
LAYER = "model.layers.0"
SIZES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "model.norm.weight": (WIDTH,),
    f"{LAYER}.input_layernorm.weight": (WIDTH,),
    f"{LAYER}.post_attention_layernorm.weight": (WIDTH,),
    **{f"{LAYER}.self_attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkvo"},
    f"{LAYER}.mlp.gate_proj.weight": (2 * WIDTH, WIDTH),
    f"{LAYER}.mlp.up_proj.weight": (2 * WIDTH, WIDTH),
    f"{LAYER}.mlp.down_proj.weight": (WIDTH, 2 * WIDTH),
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BRANCHES = ("main", "master", COMMIT)
LARGE = 4096
"""Files from this length on are those of Git LFS, whose sha256 the hub lists."""
MS = re.compile(r"/api/v1/models/(?P<repo>[^/]+/[^/]+)/repo(?P<list>/files)?")
HF_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>[^/]+)")
HF_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class HubServer:
    """Repositories in memory, the requests that came, and the faults of the next ones."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range."""
    cut: dict[str, list[int]] = field(default_factory=dict)
    """Name of a file: after how many bytes of each next answer the connection closes."""
    listed: dict[str, bytes] = field(default_factory=dict)
    """Files whose digests are listed as if they had this content."""
    status: int = 200
    url: str = ""

    def fetched(self) -> list[str]:
        """The files of which bytes were requested, in order."""
        known = {name for files in self.repositories.values() for name in files}
        gets = [path for method, path, _ in self.requests if method == "GET"]
        names = [path.partition(f"/{COMMIT}/")[2] or path for path in gets]
        return [name for name in names if name in known]

    def ranges(self, name: str) -> list[str]:
        """The Range header of each request for a file; "" where it had none."""
        return [span for method, path, span in self.requests if method == "GET" and path.endswith(name)]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    state = HubServer()

    class Handler(_HubHandler):
        hub = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.hub.requests.append((self.command, query.get("FilePath", path), self.headers.get("Range", "")))
        if self.hub.status != 200:
            self._reply(self.hub.status, b"{}", {})
        elif found := HF_INFO.fullmatch(path):
            self._info(found["repo"], found["revision"])
        elif found := HF_FILE.fullmatch(path):
            self._file(found["repo"], found["revision"], found["file"])
        elif found := MS.fullmatch(path):
            if found["list"]:
                self._ms_list(found["repo"], query.get("Revision", "master"))
            else:
                self._file(found["repo"], query.get("Revision", "master"), query["FilePath"])
        else:
            self._reply(404, b"{}", {})

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _info(self, repo: str, revision: str) -> None:
        files = self.hub.repositories.get(repo)
        if files is None:
            self._reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in BRANCHES:
            self._reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [self._sibling(name, content) for name, content in files.items()]
            body = {"id": repo, "sha": COMMIT, "siblings": siblings}
            self._reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        as_listed = self.hub.listed.get(name, content)
        found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_digest(as_listed)}
        if len(content) >= LARGE:
            digest = hashlib.sha256(as_listed).hexdigest()
            found["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        return found

    def _ms_list(self, repo: str, revision: str) -> None:
        files = self.hub.repositories.get(repo)
        if files is None or revision not in BRANCHES:
            self._reply(404, b'{"Code": 10010205001, "Message": "no such model", "Success": false}', {})
            return
        listed = [
            {
                "Path": name,
                "Name": name.rpartition("/")[2],
                "Size": len(content),
                "Sha256": hashlib.sha256(self.hub.listed.get(name, content)).hexdigest(),
                "Type": "blob",
            }
            for name, content in files.items()
        ]
        body = {"Code": 200, "Success": True, "Data": {"Files": listed}}
        self._reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, revision: str, name: str) -> None:
        content = self.hub.repositories.get(repo, {}).get(name)
        if content is None or revision not in BRANCHES:
            self._reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        large = len(content) >= LARGE
        etag = hashlib.sha256(content).hexdigest() if large else git_digest(content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            self._reply(200, content, headers, name)
            return
        start, end = int(span[1]), min(int(span[2] or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._reply(206, content[start : end + 1], headers, name)

    def _reply(self, status: int, body: bytes, headers: dict[str, str], name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.hub.cut.get(name, [])
        if cuts:
            self.wfile.write(body[: cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True  # fewer bytes than promised: the transfer broke
        else:
            self.wfile.write(body)


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="session")
def model_files() -> dict[str, bytes]:
    """The files of a small llama with random weights and a tokenizer, as a hub has them."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    draw = np.random.default_rng(1)
    tensors = {name: draw.normal(0, 0.05, size).astype(np.float32) for name, size in SIZES.items()}
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(tensors),
        "tokenizer.json": words.to_str().encode(),
        "generation_config.json": b'{"eos_token_id": 3}',
    }
