"""Databases that are files of the home, or else on a server: what they are called, and how they come back.

One that is a file is copied as such. One on a server is written down, under the path of the file that it
would be, and becomes that file or is loaded into an empty database elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windlass.serve.records.state import FILE as STATE_FILE
from windlass.serve.records.state import open_state
from windlass.spec.errors import AskedWrongly, did_you_mean
from windlass.store.database import Database


@dataclass(frozen=True)
class Kind:
    """A database by its name."""

    name: str
    file: str
    """Of the home, where it is not on a server."""
    open: Callable[[str], Database]
    """By its URL, with its tables made."""
    used: str
    """A query that finds a row once anybody has used it."""


SERVICE = Kind("service", STATE_FILE, open_state, "SELECT 1 FROM audit LIMIT 1")
KINDS: tuple[Kind, ...] = (SERVICE,)


def check_names(given: Mapping[str, str], kinds: Sequence[Kind] | None = None) -> None:
    """Refuse a name that means no database."""
    known = [kind.name for kind in (KINDS if kinds is None else kinds)]
    for name in given:
        if name not in known:
            raise AskedWrongly(f"no database is called '{name}'", hint=did_you_mean(name, known))


def kind_of(path: str) -> Kind | None:
    """Return whose dump stands under a path of the home."""
    return next((kind for kind in KINDS if kind.file == path), None)
