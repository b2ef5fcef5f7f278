"""Backup and restore of databases, consistent while other processes keep writing.

A SQLite file is copied by SQLite itself (its online backup). A database on a server is dumped row by row
within one transaction, and can be loaded into any kind of database:

    {"format": "windlass-dump-1", "tables": ["audit", ...]}
    {"table": "audit", "columns": ["number", ...]}
    [1, 1800000000000, ...]
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from windlass.spec.errors import Damaged, InUse
from windlass.store.on_sqlite import SqliteDatabase
from windlass.store.sql import PATIENCE_S, Database, Row, Transaction
from windlass.store.store_dir import translate_os_errors

FORMAT = "windlass-dump-1"
OWN = ("changes", "steps")
"""Tables of migrations and revisions of the database itself: not copied to another one."""


def is_sqlite(file: Path) -> bool:
    with translate_os_errors(str(file)), file.open("rb") as opened:
        return opened.read(16) == b"SQLite format 3\x00"


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database that is in use; the copy is one complete, checked file."""
    target.unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=PATIENCE_S)) as here,
            closing(sqlite3.connect(target)) as there,
        ):
            here.backup(there)
            there.execute("PRAGMA journal_mode = DELETE")
        check_sqlite(target)
    except sqlite3.Error as error:
        raise Damaged(f"{source}: cannot be copied: {error}") from None


def check_sqlite(file: Path) -> None:
    """Raise Damaged unless the database passes SQLite's integrity check."""
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
            said = opened.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        raise Damaged(f"{file}: is not a whole SQLite database: {said}")


def dump(database: Database, target: Path) -> None:
    """Dump all tables as of one moment."""
    with target.open("w", encoding="utf-8") as file, database.transaction(light=True) as transaction:
        tables = _tables(database, transaction)
        file.write(json.dumps({"format": FORMAT, "tables": tables}) + "\n")
        for table in tables:
            columns = _columns(database, transaction, table)
            file.write(json.dumps({"table": table, "columns": columns}) + "\n")
            for row in transaction.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def load(source: Path, database: Database, is_fresh: Callable[[Transaction], bool]) -> None:
    """Load a dump into a database with empty tables. Loading it again changes nothing."""

    def work(transaction: Transaction) -> None:
        written = list(_written(source))
        there = {
            table: transaction.execute(f"SELECT {', '.join(columns)} FROM {table}")
            for table, columns, _ in written
        }
        if all(_same(there[table], rows) for table, _, rows in written):
            return
        if not is_fresh(transaction):
            raise InUse(f"{database.shown}: holds records already", hint="restore into an empty database")
        for table, _, _ in reversed(written):
            transaction.execute(f"DELETE FROM {table}")
        for table, columns, rows in written:
            marks = ", ".join("?" for _ in columns)
            for row in rows:
                transaction.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *row)

    database.atomically(work)


def _written(source: Path) -> Iterator[tuple[str, list[str], list[Row]]]:
    """Yield the tables of a dump; tables that others reference come first."""
    found: dict[str, tuple[list[str], list[Row]]] = {}
    with translate_os_errors(str(source)), source.open(encoding="utf-8") as file:
        if json.loads(next(file))["format"] != FORMAT:
            raise Damaged(f"{source}: a dump of unknown format", hint=f"known: {FORMAT}")
        rows: list[Row] = []
        for line in file:
            value: Any = json.loads(line)
            if isinstance(value, dict):
                rows = []
                found[value["table"]] = value["columns"], rows
            else:
                rows.append(tuple(value))
    for table in sorted(found.keys() - set(OWN), key=lambda name: (name != "tenants", name)):
        yield table, *found[table]


def tables_in(source: Path) -> frozenset[str]:
    """Return the names of the tables that a dump holds."""
    return frozenset(table for table, _, _ in _written(source))


def _same(one: list[Row], other: list[Row]) -> bool:
    return sorted(map(json.dumps, one)) == sorted(map(json.dumps, other))


def _tables(database: Database, transaction: Transaction) -> list[str]:
    if isinstance(database, SqliteDatabase):
        found = transaction.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        found = transaction.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
    return sorted(str(name) for (name,) in found if name not in OWN and not str(name).startswith("sqlite_"))


def _columns(database: Database, transaction: Transaction, table: str) -> list[str]:
    if isinstance(database, SqliteDatabase):
        return [str(row[1]) for row in transaction.execute(f"PRAGMA table_info({table})")]
    found = transaction.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = ? ORDER BY ordinal_position",
        table,
    )
    return [str(name) for (name,) in found]
