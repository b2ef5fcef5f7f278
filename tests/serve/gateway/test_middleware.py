"""Access: every route, with every kind of key, and every spelling of a path or a header."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.routing import Route

from windlass.http.errors import ApiError
from windlass.http.origins import check
from windlass.serve.gateway.app import ADMIN, router
from windlass.serve.gateway.edge.access import OPEN, PATH_SCOPES, Access, scope_of
from windlass.serve.records.audit_log import Actor

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
MAKER = Actor("", "the tests")
ASK: dict[str, Any] = {"model": "tiny", "prompt": "dog", "max_tokens": 20}
BROKEN_HEADERS = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer  ",
    "Basic dXNlcjpwYXNz",
    "Bearer wlk_",
    "Bearer ' OR 1=1 --",
    "Bearer '||pg_sleep(10)--",
    'Bearer "admin"',
    "Bearer null",
    "Bearer " + "x" * 600,
    "Token {user}",
    "{user}",
    "Bearer {user} {user}",
    "Bearer {user},Bearer {user}",
    "Bearer\t{user}",
    "Bearer {user}x",
]


def routes() -> list[tuple[str, str]]:
    """Every method and path of the app, with its parts filled in."""
    filled = []
    for route in [*router.routes, *(route for each in ADMIN for route in each.routes)]:
        assert isinstance(route, APIRoute | Route)
        path = route.path
        for part in route.param_convertors:
            path = path.replace(f"{{{part}:path}}", "x").replace(f"{{{part}}}", "x")
        filled += [(method, path) for method in sorted(route.methods or ())]
    return [*filled, ("GET", "/openapi.json")]


@pytest.fixture
def client(guarded: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def ask(guarded: Any) -> Any:
    """Send bytes, return the status line and body of the first answer."""

    def ask(data: bytes) -> tuple[int, bytes]:
        with socket.create_connection(("127.0.0.1", int(guarded.url.rpartition(":")[2])), PATIENCE_S) as line:
            line.sendall(data)
            reply = b"".join(iter(lambda: line.recv(65536), b""))
        return int(reply.split(b" ", 2)[1]), reply.partition(b"\r\n\r\n")[2]

    return ask


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_asks_for_its_scope(
    client: httpx.Client, given_keys: Any, method: str, path: str
) -> None:
    needed = scope_of(path.encode())
    assert needed is not None, f"{path} is a route that no door leads to"
    for name, scopes in (("user", {"use"}), ("metrics", {"metrics"}), ("admin", {"use", "metrics", "admin"})):
        status = client.request(method, path, headers=given_keys.bearer(name)).status_code
        if needed == OPEN or needed in scopes:
            assert status not in (401, 403), (name, status)
        else:
            assert status == 403, (name, status)
    for headers in ({}, given_keys.bearer("revoked"), given_keys.bearer("expired")):
        response = client.request(method, path, headers=headers)
        assert (response.status_code == 401) == (needed != OPEN)
        if needed != OPEN:
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_foreign_host_is_sent_away_from_every_route_with_the_best_of_keys(
    client: httpx.Client, given_keys: Any, method: str, path: str
) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[::1"):
        for headers in ({}, given_keys.bearer("user"), given_keys.bearer("admin")):
            response = client.request(method, path, headers=headers | {"host": host})
            assert response.status_code == 403


@pytest.mark.parametrize("header", BROKEN_HEADERS)
def test_a_header_that_is_no_key_opens_nothing(ask: Any, given_keys: Any, header: str) -> None:
    token = given_keys.tokens["user"]
    sent = f"Host: localhost\r\nConnection: close\r\nAuthorization: {header.replace('{user}', token)}"
    for path in ("/v1/models", "/metrics", "/admin/keys", "/nothing"):
        status, body = ask(f"GET {path} HTTP/1.1\r\n{sent}\r\n\r\n".encode())
        assert (status, json.loads(body)["error"]["code"]) == (401, "unauthorized")
        assert token.encode() not in body


def test_two_keys_are_none(client: httpx.Client, given_keys: Any) -> None:
    for second in ("user", "admin", "revoked"):
        both = [*given_keys.bearer("admin").items(), *given_keys.bearer(second).items()]
        assert client.get("/v1/models", headers=both).status_code == 401


def test_a_key_in_the_query_is_none(client: httpx.Client, given_keys: Any) -> None:
    token = given_keys.tokens["admin"]
    for name in ("key", "api_key", "token", "access_token", "authorization"):
        assert client.get(f"/v1/models?{name}={token}").status_code == 401


def test_the_scheme_may_be_written_in_any_case(client: httpx.Client, given_keys: Any) -> None:
    for scheme in ("bearer", "BEARER", "Bearer "):
        header = f"{scheme} {given_keys.tokens['user']}"
        assert client.get("/v1/models", headers={"authorization": header}).status_code == 200


def test_a_missing_scope_is_named(client: httpx.Client, given_keys: Any) -> None:
    error = client.get("/metrics", headers=given_keys.bearer("user")).json()["error"]
    assert (error["code"], "'metrics'" in error["message"]) == ("forbidden", True)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../healthz",
        "/healthz/../v1/models",
        "/healthz/..%2fv1/models",
        "/page/../v1/models",
        "/page/%2e%2e/v1/models",
        "/page/..;/v1/models",
        "/errors/%2E%2E/v1/models",
        "/v1/%2e/models",
        "//v1/models",
        "/v1//models",
        "/v1\\models",
        "/v1/models;x=1",
        "/v1/models%00",
        "/%76%31/models",
        "/page/%252e%252e/v1/models",
        "/page/%zz",
        "http://localhost/v1/models",
        "http://localhost/healthz",
        "v1/models",
        "*",
    ],
)
def test_a_path_that_could_be_read_in_two_ways_opens_nothing(ask: Any, given_keys: Any, path: str) -> None:
    token = given_keys.tokens["admin"]
    host = "Host: localhost\r\nConnection: close\r\n"
    status, _ = ask(f"GET {path} HTTP/1.1\r\n{host}\r\n".encode())
    assert status in (400, 401)
    status, body = ask(f"GET {path} HTTP/1.1\r\n{host}Authorization: Bearer {token}\r\n\r\n".encode())
    assert status in (400, 404)
    assert b"tiny@3" not in body


@given(path=st.from_regex(rb"\A/[ -~]*\Z"))
@example(path=b"/healthz")
@example(path=b"/page/a/../../v1/models")
def test_no_path_but_the_named_ones_is_open(path: bytes) -> None:
    if scope_of(path) == OPEN:
        decoded = httpx.URL("http://x", raw_path=path).path
        named = [path.decode() for path, scope in PATH_SCOPES.items() if scope == OPEN]
        below = ("/page/", "/errors/")
        assert decoded in named or decoded.startswith(below)
        assert ".." not in decoded.split("/")


def test_a_route_without_a_rule_is_closed(client: httpx.Client, given_keys: Any, guarded: Any) -> None:
    async def reveal() -> str:
        return "secret"

    guarded.app.add_api_route("/added", reveal)
    assert client.get("/added").status_code == 401
    answer = client.get("/added", headers=given_keys.bearer("admin"))
    assert (answer.status_code, "secret" in answer.text) == (404, False)


def test_a_stream_whose_key_is_revoked_ends_with_an_error_event(
    client: httpx.Client, given_keys: Any, engine: Any
) -> None:
    key, token = given_keys.keys.make("passing", MAKER, scopes=["use"])
    engine.held = {2}
    headers = {"authorization": f"Bearer {token}"}
    with client.stream("POST", "/v1/completions", json=ASK | {"stream": True}, headers=headers) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        given_keys.keys.revoke(key.id, MAKER)
        last = [line for line in lines if line][-2:]
    assert last[0] == "event: error"
    assert json.loads(last[1][6:])["error"]["code"] == "unauthorized"
    engine.wait_for(lambda received: len(received) == 2)  # the second message cancels the request
    assert client.post("/v1/completions", json=ASK, headers=headers).status_code == 401


def test_a_whole_answer_whose_key_is_revoked_is_refused(
    client: httpx.Client, given_keys: Any, engine: Any
) -> None:
    key, token = given_keys.keys.make("going", MAKER, scopes=["use"])
    engine.held = {0}
    headers = {"authorization": f"Bearer {token}"}
    replies: list[httpx.Response] = []

    def wait() -> None:
        replies.append(client.post("/v1/completions", json=ASK, headers=headers))

    waiting = threading.Thread(target=wait)
    waiting.start()
    engine.wait_for(lambda received: len(received) == 1)
    given_keys.keys.revoke(key.id, MAKER)
    waiting.join(PATIENCE_S)
    assert replies[0].status_code == 401


def test_streams_of_other_keys_continue_when_one_is_revoked(
    client: httpx.Client, given_keys: Any, engine: Any
) -> None:
    key, _ = given_keys.keys.make("bystander", MAKER, scopes=["use"])
    engine.pause_s = 0.1
    ask = ASK | {"stream": True}
    with client.stream("POST", "/v1/completions", json=ask, headers=given_keys.bearer("user")) as response:
        lines = response.iter_lines()
        next(lines)
        given_keys.keys.revoke(key.id, MAKER)
        assert [line for line in lines if line][-1] == "data: [DONE]"


ORIGIN = "https://app.example"
ALLOWED = frozenset({ORIGIN})


@pytest.fixture
def cross(start_gateway: Any, given_keys: Any) -> Iterator[httpx.Client]:
    gateway = start_gateway(access=Access(keys=given_keys.keys, origins=ALLOWED))
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as client:
        yield client


def test_a_page_of_an_allowed_origin_asks_first_without_a_key_and_then_with_one(
    cross: httpx.Client, given_keys: Any
) -> None:
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    first = cross.options("/v1/completions", headers=preflight)
    assert first.status_code == 204
    assert first.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in first.headers["access-control-allow-headers"]
    allowed = set(first.headers["access-control-allow-methods"].split(", "))
    assert {method for method, _ in routes()} <= allowed | {"HEAD"}
    assert "access-control-allow-credentials" not in first.headers
    headers = {"origin": ORIGIN}
    assert cross.post("/v1/completions", json=ASK, headers=headers).status_code == 401
    answer = cross.post("/v1/completions", json=ASK, headers=headers | given_keys.bearer("user"))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert "origin" in answer.headers["vary"].lower()


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://app.example",
        "https://app.example.evil.example",
        "null",
        "https://[",
        "",
    ],
)
def test_other_origins_are_refused_even_with_a_key(cross: httpx.Client, given_keys: Any, origin: str) -> None:
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    for headers in (preflight, preflight | given_keys.bearer("admin")):
        response = cross.options("/v1/completions", headers=headers)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers


def test_without_origins_a_preflight_opens_nothing(client: httpx.Client) -> None:
    preflight = {"origin": ORIGIN, "access-control-request-method": "GET"}
    assert client.options("/v1/models", headers=preflight).status_code == 403


@given(hosts=st.lists(st.text("abc.:[]@%1/ ", max_size=20), min_size=2, max_size=3))
def test_more_than_one_host_is_refused(hosts: list[str]) -> None:
    scope = {"type": "http", "headers": [(b"host", host.encode()) for host in hosts]}
    with pytest.raises(ApiError, match="Host headers"):
        check(scope, loopback=False)
    assert len(Headers(scope=scope).getlist("host")) == len(hosts)
