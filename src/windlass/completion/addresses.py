"""Paths and headers of the server, as commands and programs name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.completion.rank import ranked
from windlass.completion.schema import ApiDocument, Operation
from windlass.spec.errors import nearest

_URL = re.compile(r"((?:\w+://)?[^/]*)(/.*)?$", re.S)
_HOST = re.compile(r"[.:$]|localhost")


@dataclass(frozen=True)
class Address:
    """A path of the server, with the server's URL."""

    path: str
    url: str
    about: str


def split(url: str) -> tuple[str, str]:
    """Split an address into its server and its path."""
    found = _URL.match(url)
    return (found[1], found[2] or "") if found else (url, "")


def addresses(api: ApiDocument, models: Sequence[str], server: str, typed: str) -> list[Address]:
    """Return the addresses that a partly typed one may mean, the likeliest first."""
    base, path = split(typed)
    if not path and (server.startswith(base) or not _HOST.search(base)):
        base = server
    about = {each: operation.about for operation in _by_use(api) for each in _paths(operation, models)}
    return [Address(each, base + each, about[each]) for each in ranked(path, list(about))]


def near_path(api: ApiDocument, path: str) -> str | None:
    """Return the path that an unknown one most likely means."""
    if not path or api.find(path) is not None:
        return None
    return nearest(path[:100], [each.path for each in api.operations])


def header_values(operation: Operation | None, key: str) -> dict[str, tuple[str, str]]:
    """Return the headers that an operation reads, each with a value and its purpose."""
    found = {
        "authorization": (f"Bearer {key}", "a key of `windlass keys make`"),
        "content-type": ("application/json", "what the body is"),
    }
    for each in operation.headers if operation is not None else ():
        found[each.name.lower()] = (
            each.default or ("60000" if each.has("integer") else "request-1"),
            each.about,
        )
    return found | {"accept": ("text/event-stream", "an answer that streams")}


def _by_use(api: ApiDocument) -> list[Operation]:
    """Sort operations as they are used: those with a body first, those for administrators last."""
    return sorted(api.operations, key=lambda each: (not each.path.startswith("/v1/"), each.body is None))


def _paths(operation: Operation, models: Sequence[str]) -> list[str]:
    if "{model}" in operation.path:
        return [operation.path.replace("{model}", name) for name in models]
    return [operation.path.partition("{")[0]]
