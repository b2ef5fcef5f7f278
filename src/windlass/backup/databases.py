"""Names the databases of a home, which are files or on a server.

A SQLite file is copied. A database on a server is dumped under the path that its file would have; a restore
turns the dump into that file, or loads it into an empty database on a server.
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
    """A database of a home."""

    name: str
    file: str
    """Its path in the home, if it is not on a server."""
    schemas: tuple[Schema, ...]
    table: str
    """A table of it that has rows once the database has been used."""

    def is_fresh(self, transaction: Transaction) -> bool:
        """Whether the database has not been used yet."""
        return not transaction.execute(f"SELECT 1 FROM {self.table} LIMIT 1")


SERVICE = DatabaseKind("service", STATE_FILE, STATE_SCHEMAS, "audit")
CONTROL = DatabaseKind("control", PLANE_FILE, (PLANE,), "plane_jobs")
KINDS: tuple[DatabaseKind, ...] = (SERVICE, CONTROL)


def open_for(url: str, tables: Collection[str]) -> Database:
    """Open a database with all schemas that a dump needs: several kinds may share one database."""
    return open_database(url, [schema for kind in KINDS if kind.table in tables for schema in kind.schemas])


def check_names(given: Mapping[str, str], kinds: Sequence[DatabaseKind] | None = None) -> None:
    """Raise for a name of no database."""
    known = [kind.name for kind in (KINDS if kinds is None else kinds)]
    for name in given:
        if name not in known:
            raise AskedWrongly(f"no database is called '{name}'", hint=did_you_mean(name, known))


def kind_of(path: str) -> DatabaseKind | None:
    """Return the database whose dump has this path."""
    return next((kind for kind in KINDS if kind.file == path), None)
