"""Half-typed Python: calls of OpenAI's client, of windlass.sdk, and of httpx or requests.

Input: a program, or a line of one, and the cursor. Output: the call around the cursor, or else the
last one before it; its operation, and its arguments as a tree with positions in the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from windlass.completion.json_text import read_arguments
from windlass.completion.schema import ApiDocument, Operation
from windlass.completion.suggestions import Fix
from windlass.completion.tree import CLOSERS, TreeNode, plain

OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""What OpenAI's client has a method for, named like the path."""
_OURS = frozenset(
    {"top_k", "min_p", "repetition_penalty", "guided_json", "guided_regex", "guided_choice", "priority"}
)
NOT_OPENAI = {
    "/v1/chat/completions": _OURS,
    "/v1/completions": _OURS | {"response_format"},
    "/v1/embeddings": _OURS,
}
"""Parameters that OpenAI's client only sends inside `extra_body`."""
OPENAI_OWN = frozenset({"extra_body", "extra_headers", "extra_query", "timeout"})
SDK = {
    "complete": ("/v1/completions", "prompt"),
    "stream": ("/v1/completions", "prompt"),
    "chat": ("/v1/chat/completions", "turns"),
    "stream_chat": ("/v1/chat/completions", "turns"),
    "embed": ("/v1/embeddings", "inputs"),
    "tokenize": ("/v1/tokenize", "text"),
    "detokenize": ("/v1/detokenize", "tokens"),
}
"""Methods of windlass.sdk.Client: the path that they ask, and the name of their first argument."""
SDK_NAMES = {"turns": "messages", "inputs": "input"}
"""Arguments that are called otherwise in a body."""
SDK_OWN = frozenset({"deadline", "idempotency_key"})
SDK_SETTINGS = frozenset(
    {
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias", "n", "seed", "stop", "response_format", "guided_json",
        "guided_regex", "guided_choice", "logprobs", "echo", "priority", "user", "model",
    }
)  # fmt: skip
"""How an answer is written, as windlass.sdk takes it; a test holds these tables to the client."""
HTTP = ("post", "get", "put", "patch", "delete", "request", "stream")
HTTP_ARGUMENTS = {
    "json": "the body",
    "headers": "headers, the key among them",
    "timeout": "seconds to wait for an answer",
}

Style = Literal["openai", "sdk", "http"]

_NAME = re.compile(r"[A-Za-z_][\w.]*\s*$")
_TOKEN = re.compile(r"'''|\"\"\"|['\"#()\[\]{}]")
_BASE = re.compile(r"""base_url\s*=\s*["'](https?://[^"'\s]+)|\bClient\(\s*["'](https?://[^"'\s]+)""")


@dataclass(frozen=True)
class PythonCall:
    """A call: what is called, and where its parenthesis opens; `end` is None while it is open."""

    name: str
    open: int
    end: int | None = None

    @property
    def method(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class ServerCall:
    """A call that sends a request to the server."""

    call: PythonCall
    style: Style
    operation: Operation | None
    tree: TreeNode
    slips: tuple[Fix, ...]
    outer: str = ""
    """The brackets around it that are open as well, as they have to be closed."""

    @property
    def url_place(self) -> int:
        return 1 if self.call.method in ("request", "stream") else 0

    @property
    def url(self) -> str:
        """The address that a call of httpx or requests has for its first argument."""
        placed = [entry.value for entry in self.tree.entries if entry.key is None]
        named = [
            entry.value for entry in self.tree.entries if entry.key is not None and entry.key.value == "url"
        ]
        found = placed[self.url_place] if len(placed) > self.url_place else next(iter(named), None)
        return str(found.value) if found is not None and found.kind == "string" else ""

    def holds(self, cursor: int) -> bool:
        """Whether the cursor is between its parentheses."""
        return self.call.open < cursor and (self.call.end is None or cursor < self.call.end)

    def argument(self, name: str) -> TreeNode | None:
        for entry in self.tree.entries:
            if entry.key is not None and entry.key.value == name:
                return entry.value
        return None

    def body(self) -> Any:
        """Return the body that the call would send."""
        if self.style == "http":
            return plain(self.argument("json"))
        given = plain(self.tree)
        extra = given.pop("extra_body", None)
        placed = [entry.value for entry in self.tree.entries if entry.key is None]
        if self.style == "sdk":
            first = SDK[self.call.method][1]
            given |= {first: plain(placed[0])} if placed else {}
            given = {SDK_NAMES.get(name, name): value for name, value in given.items()}
            given |= {"stream": True} if self.call.method.startswith("stream") else {}
        kept = {name: value for name, value in given.items() if name not in OPENAI_OWN | SDK_OWN}
        return kept | (extra if isinstance(extra, dict) else {})


def find_server_call(text: str, cursor: int, api: ApiDocument) -> ServerCall | None:
    """Return the call around the cursor, or the last one before it, if it sends a request to the server."""
    open_calls = [call for call in scan(text[:cursor])[0] if call.end is None]
    calls, stack = scan(text)
    whole = {call.open: call for call in calls}
    for call in [*open_calls, *reversed([call for call in calls if call.open < cursor])]:
        found = _server_call(text, whole.get(call.open, call), api)
        if found is not None:
            outer = [sign for place, sign in stack if place < call.open]
            return replace(found, outer="".join(CLOSERS[sign] for sign in reversed(outer)))
    return None


def scan(text: str) -> tuple[list[PythonCall], list[tuple[int, str]]]:
    """Return all calls of a program, and the brackets that are open at its end."""
    calls: list[PythonCall] = []
    stack: list[tuple[int, str]] = []
    opened: dict[int, int] = {}
    at = 0
    while found := _TOKEN.search(text, at):
        sign, at = found[0], found.end()
        if sign == "#":
            at = _past(text, "\n", at)
        elif sign[0] in "'\"":
            at = _past_string(text, sign, at)
        elif sign in CLOSERS:
            stack.append((found.start(), sign))
            name = _NAME.search(text, max(0, found.start() - 200), found.start()) if sign == "(" else None
            if name is not None:
                opened[found.start()] = len(calls)
                calls.append(PythonCall(name[0].strip(), found.start()))
        elif stack:
            place, _ = stack.pop()
            if place in opened:
                calls[opened[place]] = replace(calls[opened[place]], end=at)
    return calls, stack


def server_in(text: str) -> str:
    """Return the server URL in a program, if there is one."""
    found = _BASE.search(text)
    return (found[1] or found[2]).removesuffix("/").removesuffix("/v1") if found else ""


def callables(text: str, receiver: str, api: ApiDocument) -> list[str]:
    """Return the methods of the receiver that send requests to the server."""
    if receiver in ("httpx", "requests", "session", "http"):
        return [f"{name}(" for name in HTTP]
    own = [f"{name}(" for name, (path, _) in SDK.items() if api.find(path) is not None]
    theirs = [path[4:].replace("/", ".") + ".create(" for path in OPENAI if api.find(path) is not None]
    if "openai" in text.lower():
        return theirs
    return [*own, *theirs] if "windlass" in text else [*theirs, *own]


def _server_call(text: str, call: PythonCall, api: ApiDocument) -> ServerCall | None:
    style = _style(text, call, api)
    if style is None:
        return None
    tree, slips = read_arguments(text[: call.end], call.open)
    found = ServerCall(call, style, None, tree, tuple(slips))
    operation = _operation(found, api)
    if style != "http" and (operation is None or operation.body is None):
        return None
    return replace(found, operation=operation)


def _style(text: str, call: PythonCall, api: ApiDocument) -> Style | None:
    if _openai_path(call, api):
        return "openai"
    head = text[call.open + 1 : call.open + 40].lstrip()
    is_web = call.name.split(".")[0] in ("httpx", "requests", "session", "http")
    names_method = re.match(r"[\"'](?:GET|POST|PUT|PATCH|DELETE)[\"']", head)
    if call.method in HTTP and (call.method not in SDK or names_method or is_web) and "." in call.name:
        return "http"
    return "sdk" if call.method in SDK and "." in call.name else None


def _openai_path(call: PythonCall, api: ApiDocument) -> str:
    parts = call.name.split(".")
    if parts[-1] != "create":
        return ""
    paths = ["/v1/" + "/".join(parts[first:-1]) for first in range(len(parts) - 1)]
    return next((path for path in paths if path in OPENAI and api.find(path) is not None), "")


def _operation(server_call: ServerCall, api: ApiDocument) -> Operation | None:
    if server_call.style == "openai":
        return api.find(_openai_path(server_call.call, api), "POST")
    if server_call.style == "sdk":
        return api.find(SDK[server_call.call.method][0], "POST")
    path = re.sub(r"^(?:\w+://)?[^/]*", "", server_call.url)
    method = server_call.call.method if server_call.url_place == 0 else "post"
    return api.find(path, method) if path else None


def _past(text: str, sign: str, at: int) -> int:
    found = text.find(sign, at)
    return len(text) if found < 0 else found + len(sign)


def _past_string(text: str, quote: str, at: int) -> int:
    """Return the place behind a string; a short one ends with its line at the latest."""
    if len(quote) == 3:
        return _past(text, quote, at)
    while at < len(text) and text[at] != "\n":
        if text[at] == quote:
            return at + 1
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))
