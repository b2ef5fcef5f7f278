"""Databases that are files of the home, or else on a server: what they are called, and how they come back.

One that is a file is copied as such. One on a server is written down, under the path of the file that it
would be, and becomes that file or is loaded into an empty database elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from windlass.control.plane.job_store import FILE as PLANE_FILE
from windlass.control.plane.tables import PLANE
from windlass.serve.records.state import FILE as STATE_FILE
from windlass.serve.records.state import SCHEMAS as STATE_SCHEMAS
from windlass.spec.errors import AskedWrongly, did_you_mean
from windlass.store.database import Database, Schema, Transaction, open_database


@dataclass(frozen=True)
class DatabaseKind:
    """A database by its name."""

    name: str
    file: str
    """Of the home, where it is not on a server."""
    schemas: tuple[Schema, ...]
    table: str
    """One of its own, which has a row once anybody has used it."""

    def is_fresh(self, transaction: Transaction) -> bool:
        """Whether nobody has used it yet."""
        return not transaction.execute(f"SELECT 1 FROM {self.table} LIMIT 1")


SERVICE = DatabaseKind("service", STATE_FILE, STATE_SCHEMAS, "audit")
CONTROL = DatabaseKind("control", PLANE_FILE, (PLANE,), "plane_jobs")
KINDS: tuple[DatabaseKind, ...] = (SERVICE, CONTROL)


def open_for(url: str, tables: Collection[str]) -> Database:
    """Open a database with all that a dump needs: several kinds may have shared the one it was taken from."""
    return open_database(url, [schema for kind in KINDS if kind.table in tables for schema in kind.schemas])


def check_names(given: Mapping[str, str], kinds: Sequence[DatabaseKind] | None = None) -> None:
    """Refuse a name that means no database."""
    known = [kind.name for kind in (KINDS if kinds is None else kinds)]
    for name in given:
        if name not in known:
            raise AskedWrongly(f"no database is called '{name}'", hint=did_you_mean(name, known))


def kind_of(path: str) -> DatabaseKind | None:
    """Return whose dump stands under a path of the home."""
    return next((kind for kind in KINDS if kind.file == path), None)
