"""Completes Python: the call, argument, value, address or header at the cursor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from windlass.completion import kinds
from windlass.completion.addresses import addresses, header_values, near_path, split
from windlass.completion.bodies import guess, whole_call, with_keys
from windlass.completion.body import BodyCompletion, fixes_of
from windlass.completion.cursor import CursorPlace, find_spot
from windlass.completion.fill import Filler
from windlass.completion.json_text import read_arguments
from windlass.completion.python_text import (
    HTTP_ARGUMENTS,
    NOT_OPENAI,
    OPENAI_OWN,
    SDK,
    SDK_NAMES,
    SDK_OWN,
    SDK_SETTINGS,
    ServerCall,
    callables,
    find_server_call,
    server_in,
)
from windlass.completion.rank import ranked
from windlass.completion.schema import ApiDocument, Field, Operation
from windlass.completion.suggestions import Explanation, Fix, Suggestion, Suggestions, put_all
from windlass.completion.tree import written
from windlass.completion.write import KEY

MAX_NAME = 200

_REST = re.compile(r"[^\"'\s,)]*[\"']?")
_NAME = re.compile(r"[A-Za-z_][\w.]*$|[A-Za-z_][\w.]*\.$")


def complete_python(text: str, cursor: int, filler: Filler, server: str) -> Suggestions:
    """Suggest what can follow in a program."""
    server_call = find_server_call(text, cursor, filler.api)
    if server_call is not None and server_call.holds(cursor):
        candidates, explains = Arguments(text, cursor, server_call, filler, server).offered()
    else:
        candidates, explains = _callees(text, cursor, filler.api), None
    if server_call is None:
        return Suggestions(kinds.PYTHON, "", "", tuple(candidates), (), text, explains, {})
    fixes = _fixes(text, server_call, filler)
    fixed = put_all(text, fixes)
    done = find_server_call(fixed, min(cursor, len(fixed)), filler.api) or server_call
    operation = done.operation or _likely(done, filler, server)
    path = split(done.url)[1] if done.style == "http" else ""
    base = split(done.url)[0] if path else server_in(fixed)
    return Suggestions(
        kinds.PYTHON,
        operation.method if operation is not None else "",
        operation.path if operation is not None else "",
        tuple(candidates),
        tuple(fixes),
        fixed,
        explains,
        whole_call(operation, done.body(), filler, base or server, path=path),
    )


def _likely(server_call: ServerCall, filler: Filler, server: str) -> Operation | None:
    """Return the operation that is most likely meant: by what there is of its path, or by its body."""
    found = addresses(filler.api, filler.models, server, server_call.url) if split(server_call.url)[1] else []
    if found:
        return filler.api.find(found[0].path, server_call.call.method)
    return guess(server_call.argument("json"), CursorPlace("done", (), 0), filler)[0]


def _callees(text: str, cursor: int, api: ApiDocument) -> list[Suggestion]:
    """Suggest callables for the name that is being typed."""
    found = _NAME.search(text[max(0, cursor - MAX_NAME) : cursor])
    name = found[0] if found else ""
    receiver, dot, typed = name.partition(".")
    start = cursor - len(name)
    names = callables(text, receiver, api)
    if not dot:
        typed, receiver = "", receiver if receiver in ("httpx", "requests") else "client"
        if name and not receiver.startswith(name):
            return []
    return [
        Suggestion(f"{receiver}.{each}", f"{receiver}.{each}", (start, cursor))
        for each in ranked(typed, names)
    ]


def _fixes(text: str, server_call: ServerCall, filler: Filler) -> list[Fix]:
    end = server_call.call.end if server_call.call.end is not None else len(text)
    part = text[:end]
    if server_call.style == "http":
        return [*server_call.slips, *_http_fixes(part, server_call, filler)]
    root, known = _root(server_call, filler.api)
    moved = _into_extra_body(text, server_call)
    fixes = [
        *server_call.slips,
        *moved,
        *fixes_of(part, server_call.tree, root, filler, python=True, known=known),
    ]
    return _with_outer(fixes, server_call, len(text))


def _into_extra_body(text: str, server_call: ServerCall) -> list[Fix]:
    """Let OpenAI's client send what it does not know by name."""
    operation = server_call.operation
    unknown = NOT_OPENAI.get(operation.path, frozenset()) if operation is not None else frozenset()
    named = [(str(entry.key.value), entry) for entry in server_call.tree.entries if entry.key is not None]
    found = [
        (name, entry.value, entry) for name, entry in named if name in unknown and entry.value is not None
    ]
    if server_call.style != "openai" or len(found) != 1 or server_call.argument("extra_body") is not None:
        return []
    name, value, entry = found[0]
    about = f"OpenAI's client sends '{name}' only inside extra_body"
    inner = f"extra_body={{{written(name)}: {text[value.start : value.end]}}}"
    return [Fix(about, inner, (entry.start, entry.end))] if value.closed else []


def _http_fixes(part: str, server_call: ServerCall, filler: Filler) -> list[Fix]:
    """Set right the body and the path of a call of httpx or requests, and close it."""
    body = server_call.argument("json")
    operation = server_call.operation or guess(body, CursorPlace("done", (), 0), filler)[0]
    root = filler.api.field("", {"type": "object", "properties": {"json": {}}})
    if operation is not None and operation.body is not None:
        schema = {"type": "object", "properties": {"json": operation.body.schema}}
        root = filler.api.field("", schema)
    known = frozenset(
        {*HTTP_ARGUMENTS, "url", "params", "content", "data", "follow_redirects", "verify", "stream"}
    )
    fixes = fixes_of(part, server_call.tree, root, filler, python=True, known=known - {"json"})
    path = split(server_call.url)[1]
    near = near_path(filler.api, path)
    if near is not None and (at := part.find(path, server_call.call.open)) >= 0 and server_call.tree.closed:
        fixes.append(Fix(f"there is no path {path}; {near} is meant", near, (at, at + len(path))))
    return _with_outer(fixes, server_call, len(part))


def _with_outer(fixes: list[Fix], server_call: ServerCall, end: int) -> list[Fix]:
    """Let the fix that ends the call end what is around it as well."""
    if server_call.tree.closed or not server_call.outer:
        return fixes
    return [
        replace(fix, insert=fix.insert + server_call.outer)
        if fix is fixes[-1] and fix.replace[1] == end
        else fix
        for fix in fixes
    ]


def _root(server_call: ServerCall, api: ApiDocument) -> tuple[Field, frozenset[str]]:
    """Return the arguments of a client's method as a field, and the names that only the client knows."""
    assert server_call.operation is not None
    assert server_call.operation.body is not None
    schema = server_call.operation.body.arms[0]
    properties = dict(schema.get("properties", {}))
    if server_call.style == "openai":
        return api.field("", schema), OPENAI_OWN
    first = SDK[server_call.call.method][1]
    theirs = {SDK_NAMES.get(first, first): first}
    allowed = (
        SDK_SETTINGS if server_call.call.method not in ("embed", "tokenize", "detokenize") else {"model"}
    )
    if "chat" in server_call.call.method:
        allowed = allowed - {"logprobs"}  # a number there, and a truth value in the body
    kept = {
        theirs.get(name, name): each for name, each in properties.items() if name in allowed | set(theirs)
    }
    return api.field("", {"type": "object", "properties": kept, "required": [first]}), SDK_OWN


@dataclass(frozen=True)
class Arguments:
    """The cursor inside the arguments of a call that asks the server."""

    text: str
    cursor: int
    server_call: ServerCall
    filler: Filler
    server: str

    def offered(self) -> tuple[list[Suggestion], Explanation | None]:
        tree, _ = read_arguments(self.text[: self.cursor], self.server_call.call.open)
        spot = with_keys(find_spot(tree, self.cursor), self.server_call.tree)
        if self.server_call.style == "http":
            return self._http(spot)
        root, _ = _root(self.server_call, self.filler.api)
        if spot.path[:1] == ("extra_body",):
            candidates, explains = self._body(replace(spot, path=spot.path[1:]), root)
            own = len(spot.path) == 1 and spot.role != "value"
            theirs = [
                each for each in candidates if each.text in self._unknown or not each.text[:1].isalpha()
            ]
            return theirs if own else candidates, explains
        return self._named(spot, root)

    @property
    def _unknown(self) -> frozenset[str]:
        """The parameters that OpenAI's client does not take by name."""
        operation = self.server_call.operation
        return NOT_OPENAI.get(operation.path, frozenset()) if operation is not None else frozenset()

    def _named(self, spot: CursorPlace, root: Field) -> tuple[list[Suggestion], Explanation | None]:
        """Offer arguments of a client; a place without a name is that of its first argument."""
        if spot.path and isinstance(spot.path[0], int):
            first = SDK[self.server_call.call.method][1] if self.server_call.style == "sdk" else ""
            spot = replace(spot, path=(first, *spot.path[1:]))
        candidates, explains = self._body(spot, root)
        if self.server_call.style != "openai" or spot.path or spot.role == "value":
            return candidates, explains
        kept = [each for each in candidates if each.text not in self._unknown]
        if "extra_body" not in spot.keys and spot.role == "key" and "extra_body".startswith(spot.typed):
            about = "what OpenAI's client does not know: " + ", ".join(sorted(self._unknown))
            kept.append(
                Suggestion("extra_body", "extra_body={", (spot.start, self.cursor), "object", about=about)
            )
        return kept, explains

    def _body(
        self, spot: CursorPlace, root: Field, others: Sequence[Field] = ()
    ) -> tuple[list[Suggestion], Explanation | None]:
        body = BodyCompletion(
            self.text, self.cursor, spot, root, self.filler, python=True, others=tuple(others)
        )
        candidates = body.candidates()
        return candidates, body.explains(candidates)

    def _http(self, spot: CursorPlace) -> tuple[list[Suggestion], Explanation | None]:
        inner = replace(spot, path=spot.path[1:])
        if spot.path[:1] == ("json",):
            return self._json(inner)
        if spot.path[:1] == ("headers",):
            return self._headers(spot), None
        if spot.role == "value" and spot.path in ((self.server_call.url_place,), ("url",)):
            return self._urls(spot), None
        if spot.role == "value":
            return [], None
        return self._parameters(spot), None

    def _json(self, spot: CursorPlace) -> tuple[list[Suggestion], Explanation | None]:
        tree = self.server_call.argument("json")
        operation = self.server_call.operation
        others: tuple[Field, ...] = ()
        if operation is None or operation.body is None:
            operation, others = guess(tree, spot, self.filler)
        if operation is None or operation.body is None:
            return [], None
        return self._body(spot, operation.body, others)

    def _urls(self, spot: CursorPlace) -> list[Suggestion]:
        found = addresses(self.filler.api, self.filler.models, self.server, spot.typed)
        rest = _REST.match(self.text, self.cursor) if spot.quote else None
        place = (spot.start, rest.end() if rest is not None else self.cursor)
        return [Suggestion(each.path, written(each.url), place, about=each.about) for each in found]

    def _parameters(self, spot: CursorPlace) -> list[Suggestion]:
        """Offer the arguments of httpx and requests."""
        lead = "" if spot.comma else ", "
        free = [name for name in HTTP_ARGUMENTS if name not in spot.keys]
        if self.server_call.call.method == "get":
            free = [name for name in free if name != "json"]
        place = (spot.start, self.cursor)
        if not spot.places and "url" not in spot.keys:
            return [replace(each, replace=place) for each in self._urls(replace(spot, typed="", quote=""))]
        found = [
            Suggestion(name, f"{lead}{name}=", place, about=HTTP_ARGUMENTS[name])
            for name in ranked(spot.typed, free)
        ]
        ends = [Suggestion(")", ")", place, about="ends it")] if spot.role == "after" else []
        return [*ends, *found] if "json" in spot.keys and "headers" in spot.keys else [*found, *ends]

    def _headers(self, spot: CursorPlace) -> list[Suggestion]:
        headers = header_values(self.server_call.operation, f"{{os.environ['{KEY}']}}")
        lead = "" if spot.comma else ", "
        place = (spot.start, self.cursor)
        pairs = {name: _header(value) for name, (value, _) in headers.items() if name not in spot.keys}
        if spot.role == "value":
            if len(spot.path) == 1:
                name = next(iter(pairs))
                return [Suggestion("{", f"{{{written(name)}: {pairs[name]}}}", place)]
            return [Suggestion(pairs[name], pairs[name], place) for name in pairs if name == spot.path[-1]]
        found = [
            Suggestion(name, f"{lead}{written(name)}: {pairs[name]}", place, about=headers[name][1])
            for name in ranked(spot.typed, list(pairs))
        ]
        return [Suggestion("}", "}", place), *found] if spot.role == "after" else found


def _header(value: str) -> str:
    return f'f"{value}"' if "{" in value else written(value)
