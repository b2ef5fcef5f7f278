"""A double of a Kubernetes API server: its REST behaviour, as far as our client meets it.

It is no Kubernetes. It keeps objects in a table, validates them by the published schemas and our own rules,
and answers as the API does: versions and conflicts, 404/409/410/422 with a Status, server-side apply, lists
in pages, watches, foreground deletion, rights by Role. tests/cluster/kubernetes_node.py makes pods run in it.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from windlass.cluster.kubernetes.api import KINDS
from windlass.cluster.kubernetes.rules import against_rules
from windlass.cluster.kubernetes.schemas import against_schemas
from windlass.cluster.kubernetes.tenancy import RULES

Object = dict[str, Any]
PLURALS = {kind.plural: (name, kind) for name, kind in KINDS.items()}
IMMUTABLE = ("template", "selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")
ADMIN, LAUNCHER, CONTROL = "admin-token", "launcher-token", "control-token"
RIGHTS = Path(__file__).parents[2] / "deploy" / "control" / "rights.yaml"
"""What the account of the control plane may do in the whole cluster, beyond what a launcher may."""


@functools.cache
def cluster_rules() -> list[tuple[str, list[str], list[str]]]:
    """Return the rules of the ClusterRole that `deploy/control` has."""
    (role,) = (each for each in yaml.safe_load_all(RIGHTS.read_text()) if each["kind"] == "ClusterRole")
    return [
        (group, rule["resources"], rule["verbs"]) for rule in role["rules"] for group in rule["apiGroups"]
    ]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                       "reason": reason, "message": message, "details": details}  # fmt: skip


class Table:
    """The objects, and all that happened to them."""

    def __init__(self, version: str = "1.37") -> None:
        self.version, self.lock = version, threading.RLock()
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.forgotten = 0
        self.clock = itertools.count(1)
        self.changed = threading.Condition(self.lock)
        self.dropped: list[tuple[str, ...]] = []
        """Paths that this server does not keep, as an older one would."""
        self.applied: dict[tuple[str, str, str], Object] = {}
        self.logs: Callable[[str, str], Iterator[bytes]] = lambda _namespace, _name: iter(())
        self.asked: list[tuple[str, str]] = []

    def put(self, plural: str, made: Object, what: str = "MODIFIED") -> Object:
        key = self._key(plural, made)
        with self.changed:
            version = next(self.clock)
            made["metadata"]["resourceVersion"] = str(version)
            self.objects[key] = made
            self.history.append((version, what, plural, copy.deepcopy(made)))
            self.changed.notify_all()
        return made

    def create(self, plural: str, made: Object) -> Object:
        name, kind = PLURALS[plural]
        metadata = made["metadata"]
        with self.lock:
            if kind.namespaced and ("namespaces", "", metadata.get("namespace", "")) not in self.objects:
                raise Refused(404, "NotFound", f'namespaces "{metadata.get("namespace")}" not found')
            if self._key(plural, made) in self.objects:
                raise Refused(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
            stored = self._admit(plural, {"kind": name, **made})
            stored["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            return self.put(plural, stored, "ADDED")

    def apply(self, plural: str, sent: Object) -> Object:
        with self.lock:
            key = self._key(plural, sent)
            there = self.objects.get(key)
            if there is None:
                self.applied[key] = sent
                return self.create(plural, copy.deepcopy(sent))
            merged = _merged(_without(copy.deepcopy(there), self.applied.get(key, {}), sent), sent)
            stored = self._admit(plural, merged)
            if plural == "jobs":
                _check_job_update(there["spec"], stored["spec"])
            self.applied[key] = sent
            return there if stored == there else self.put(plural, stored)

    def delete(self, plural: str, namespace: str, name: str, options: Object) -> Object:
        with self.lock:
            there = self.find(plural, namespace, name)
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted not in (None, there["metadata"]["uid"]):
                raise Refused(409, "Conflict", "the UID in the precondition does not match")
            graceful = plural == "pods" or options.get("propagationPolicy") == "Foreground"
            if not graceful:
                self.remove(plural, there)
            elif not there["metadata"].get("deletionTimestamp"):
                there["metadata"]["deletionTimestamp"] = now()
                self.put(plural, there)
            return there

    def remove(self, plural: str, there: Object) -> None:
        with self.changed:
            self.objects.pop(self._key(plural, there), None)
            self.history.append((next(self.clock), "DELETED", plural, copy.deepcopy(there)))
            self.changed.notify_all()

    def find(self, plural: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[plural, namespace, name]
        except KeyError:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural) from None

    def all(self, plural: str, namespace: str | None = None) -> list[Object]:
        with self.lock:
            return [o for (p, n, _), o in self.objects.items() if p == plural and namespace in (None, n)]

    def forget(self) -> None:
        """Lose the history, as a server does after some minutes."""
        with self.lock:
            self.forgotten = next(self.clock)
            self.history.clear()

    def since(self, plural: str, version: int) -> list[tuple[int, str, Object]]:
        if version < self.forgotten:
            raise Refused(410, "Expired", "too old resource version")
        return [(v, what, o) for v, what, p, o in self.history if p == plural and v > version]

    def _admit(self, plural: str, made: Object) -> Object:
        """Validate, drop what this server does not keep, and fill in defaults."""
        name = PLURALS[plural][0]
        if plural not in ("pods", "events", "nodes"):
            plain = {k: v for k, v in made.items() if k != "status"}
            wrong = against_schemas([plain], [self.version])
            if wrong:
                raise Refused(400, "BadRequest", f"strict decoding error: {wrong[0]}")
            found = [f for f in against_rules([plain]) if "Service '" not in f.what]
            if found:
                raise Refused(
                    422, "Invalid", f'{name} "{made["metadata"]["name"]}" is invalid: {found[0].what}'
                )
        for path in self.dropped:
            _drop(made, path)
        return _defaulted(plural, made)

    @staticmethod
    def _key(plural: str, made: Object) -> tuple[str, str, str]:
        metadata = made["metadata"]
        return plural, metadata.get("namespace", ""), metadata["name"]


def _check_job_update(before: Object, after: Object) -> None:
    for key in IMMUTABLE:
        if before.get(key) != after.get(key):
            raise Refused(422, "Invalid", f"spec.{key}: Invalid value: field is immutable")
    if before["completions"] != after["completions"] and after["completions"] != after["parallelism"]:
        raise Refused(422, "Invalid", "spec.completions: can only be modified in tandem with parallelism")


def _defaulted(plural: str, made: Object) -> Object:
    """A few of the defaults that a server adds, so that what is stored is more than what was sent."""
    if plural == "jobs":
        made["spec"].setdefault("backoffLimit", 2**31 - 1)
        made["spec"]["template"]["spec"].setdefault("dnsPolicy", "ClusterFirst")
    if plural == "services":
        made["spec"].setdefault("sessionAffinity", "None")
    made.setdefault("status", {})
    return made


def _merged(there: Any, sent: Any) -> Any:
    if isinstance(there, dict) and isinstance(sent, dict):
        return {**there, **{key: _merged(there.get(key), value) for key, value in sent.items()}}
    return copy.deepcopy(sent)


def _without(there: Object, before: Object, sent: Object) -> Object:
    """Take away what we had applied and apply no longer."""
    for key, value in before.items():
        if key not in sent:
            there.pop(key, None)
        elif isinstance(value, dict) and isinstance(sent[key], dict) and isinstance(there.get(key), dict):
            _without(there[key], value, sent[key])
    return there


def _drop(made: Any, path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        made = made.get(key, {}) if isinstance(made, dict) else {}
    if isinstance(made, dict):
        made.pop(path[-1], None)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    table: Table

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(lambda: self.table.create(self.plural, self.sent))

    def do_PATCH(self) -> None:
        self._answer(self._apply)

    def do_DELETE(self) -> None:
        self._answer(lambda: self.table.delete(self.plural, self.namespace, self.name, self.sent))

    def log_message(self, *_: Any) -> None:
        pass

    def _apply(self) -> Object:
        assert self.headers["content-type"] == "application/apply-patch+yaml"
        assert self.query["fieldManager"] == "windlass"
        return self.table.apply(self.plural, self.sent)

    def _parse(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.sent: Object = json.loads(content or b"{}")
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        parts = url.path.strip("/").split("/")[2 if url.path.startswith("/api/") else 3 :]
        self.namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            self.namespace, parts = parts[1], parts[2:]
        self.plural, self.name, self.sub = [*parts, "", "", ""][:3]
        if self.plural not in PLURALS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _allow(self) -> None:
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        verb = {"GET": "get" if self.name else "watch" if "watch" in self.query else "list", "POST": "create",
                "PATCH": "patch", "DELETE": "delete"}[self.command]  # fmt: skip
        what = f"{self.plural}/{self.sub}" if self.sub else self.plural
        self.table.asked.append((verb, what))
        group = PLURALS[self.plural][1].group
        rules = list(RULES) if self.namespace else []
        rules += cluster_rules() if token == CONTROL else []
        allowed = token == ADMIN or any(
            group == g and what in names and verb in verbs for g, names, verbs in rules
        )
        if token not in (ADMIN, LAUNCHER, CONTROL):
            raise Refused(401, "Unauthorized", "Unauthorized")
        if not allowed:
            raise Refused(403, "Forbidden", f'{what} is forbidden: cannot {verb} in "{self.namespace}"')

    def _answer(self, act: Callable[[], Object | None]) -> None:
        try:
            self._parse()
            self._allow()
            with self.table.lock:
                told = copy.deepcopy(act())
            if told is not None:
                self._send(201 if self.command == "POST" else 200, told)
        except Refused as refused:
            self._send(refused.code, refused.status)

    def _send(self, code: int, told: Object) -> None:
        body = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _get(self) -> Object | None:
        if self.sub == "log":
            self.table.find("pods", self.namespace, self.name)
            self.table.lock.release()
            try:
                return self._stream(self.table.logs(self.namespace, self.name))
            finally:
                self.table.lock.acquire()
        if self.name:
            return self.table.find(self.plural, self.namespace, self.name)
        if "watch" in self.query:
            events = self._events(int(self.query.get("resourceVersion") or 0))
            self.table.lock.release()
            try:
                return self._stream(events)
            finally:
                self.table.lock.acquire()
        found = [each for each in self.table.all(self.plural, self.namespace or None) if self._fits(each)]
        first, limit = int(self.query.get("continue", 0)), int(self.query.get("limit", 500))
        metadata: Object = {"resourceVersion": str(next(self.table.clock))}
        if first + limit < len(found):
            metadata["continue"] = str(first + limit)
        return {"kind": "List", "metadata": metadata, "items": found[first : first + limit]}

    def _events(self, version: int) -> Iterator[bytes]:
        self.table.since(self.plural, version)  # an old version is refused at once
        end = time.monotonic() + float(self.query.get("timeoutSeconds", 5))

        def lines() -> Iterator[bytes]:
            seen = version
            while time.monotonic() < end:
                try:
                    with self.table.changed:
                        news = self.table.since(self.plural, seen)
                        if not news and self.table.changed.wait(0.2):
                            news = self.table.since(self.plural, seen)
                except Refused as refused:
                    yield json.dumps({"type": "ERROR", "object": refused.status}).encode() + b"\n"
                    return
                for at, what, each in news:
                    seen = at
                    if self._fits(each) and self.namespace in ("", each["metadata"].get("namespace")):
                        yield json.dumps({"type": what, "object": each}).encode() + b"\n"

        return lines()

    def _fits(self, each: Object) -> bool:
        labels = each["metadata"].get("labels") or {}
        about = each.get("involvedObject") or {}
        wanted = dict(p.split("=", 1) for p in self.query.get("labelSelector", "").split(",") if p)
        fields = dict(p.split("=", 1) for p in self.query.get("fieldSelector", "").split(",") if p)
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            about.get(key.removeprefix("involvedObject.")) == value for key, value in fields.items()
        )

    def _stream(self, lines: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for line in lines:
                self.wfile.write(line)
                self.wfile.flush()


@contextlib.contextmanager
def serving(table: Table) -> Iterator[str]:
    """Answer on loopback; yield the URL."""
    handler = type("Bound", (Handler,), {"table": table})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
