"""Opens a SQL database by URL (SQLite file or PostgreSQL server) and migrates its tables by numbered steps.

    sqlite:///relative.db   sqlite:////absolute.db   postgresql://USER@HOST:PORT/DATABASE

`sql` is the interface; `on_sqlite` and `on_postgres` implement it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from windlass.spec.errors import BadInput, did_you_mean
from windlass.store.on_sqlite import SqliteDatabase
from windlass.store.sql import Conflict, Database, Row, Transaction

__all__ = ["Conflict", "Database", "Row", "Schema", "Transaction", "grow", "open_database", "sqlite_url"]

STEPS = "CREATE TABLE IF NOT EXISTS steps (schema_name TEXT PRIMARY KEY, steps BIGINT NOT NULL)"


@dataclass(frozen=True)
class Schema:
    """The tables of one package: each migration step is one statement, never changed once released."""

    name: str
    steps: tuple[str, ...]


def open_database(url: str, schemas: Sequence[Schema] = ()) -> Database:
    """Open a database and migrate its tables; raise BadInput if a newer version has migrated them."""
    kind, colon, rest = url.partition("://")
    if colon and kind == "sqlite":
        database: Database = SqliteDatabase(_file(rest))
    elif colon and kind in ("postgresql", "postgres"):
        from windlass.store.on_postgres import PostgresDatabase

        database = PostgresDatabase(url)
    else:
        named = kind if colon and re.fullmatch(r"[a-z0-9+.-]{1,20}", kind) else ""
        raise BadInput(
            f"unknown kind of database '{named}://'" if named else "the URL of the database names no kind",
            hint=did_you_mean(named, ["sqlite:///PATH", "postgresql://HOST/DATABASE"]),
        )
    grow(database, schemas)
    return database


def sqlite_url(file: Path) -> str:
    """Return the URL of a database in a file."""
    return f"sqlite:///{quote(str(file.absolute()))}"


def grow(database: Database, schemas: Sequence[Schema]) -> None:
    """Run the missing migration steps, each once, even if several processes start at the same time."""
    if not schemas or _taken(database, schemas):
        return

    def work(transaction: Transaction) -> None:
        known = {str(name): int(steps) for name, steps in transaction.execute("SELECT * FROM steps")}
        for schema in schemas:
            for statement in schema.steps[known.get(schema.name, 0) :]:
                transaction.execute(statement)
            transaction.execute(
                "INSERT INTO steps VALUES (?, ?)"
                " ON CONFLICT (schema_name) DO UPDATE SET steps = excluded.steps",
                schema.name,
                len(schema.steps),
            )

    database.atomically(work, alone="steps")


def _taken(database: Database, schemas: Sequence[Schema]) -> bool:
    if not database.has_table("steps"):
        database.write(STEPS)  # several processes may do so at once: a conflict is retried, and finds it
    known = {str(name): int(steps) for name, steps in database.read("SELECT * FROM steps")}
    for schema in schemas:
        if known.get(schema.name, 0) > len(schema.steps):
            raise BadInput(
                f"{database.shown}: a newer windlass made its tables ({schema.name}:"
                f" step {known[schema.name]}, this one knows {len(schema.steps)})",
                hint="use that version, or another database",
            )
    return all(known.get(schema.name) == len(schema.steps) for schema in schemas)


def _file(rest: str) -> Path:
    """Return the path after `sqlite://`; the first slash only ends the empty host."""
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or path in ("", "/") or "\x00" in path:
        raise BadInput(
            "the URL of the database names no file", hint="sqlite:///relative.db or sqlite:////absolute.db"
        )
    return Path(path).expanduser()
