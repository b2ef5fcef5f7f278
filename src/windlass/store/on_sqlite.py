"""A database in a local SQLite file.

Readers never wait for the writer (write-ahead log); writers take turns. Only the file's owner may read it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.spec.errors import Damaged, StoreFailed, WindlassError
from windlass.store.sql import PATIENCE_S, Conflict, Database, Row, Transaction
from windlass.store.store_dir import translate_os_errors

COUNTER = """
CREATE TABLE IF NOT EXISTS changes (number BIGINT NOT NULL);
INSERT INTO changes SELECT 0 WHERE NOT EXISTS (SELECT * FROM changes);
"""


class SqliteDatabase(Database):
    """The tables of one file."""

    def __init__(self, file: Path) -> None:
        self.shown = str(file)
        self._file = file
        self._idle: list[sqlite3.Connection] = []
        self._turn = threading.Lock()
        self._looking = threading.Lock()
        self._seen: tuple[int, int] = (-1, -1)
        with translate_os_errors(self.shown):
            file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with _said(self.shown):
            self._watch = self._connect()
            self._watch.execute("PRAGMA journal_mode = WAL")
            if not self.has_table("changes"):
                self._watch.executescript(f"BEGIN IMMEDIATE; {COUNTER} COMMIT;")

    def read(self, sql: str, *args: object) -> list[Row]:
        with _said(self.shown), self._borrowed() as connection:
            return connection.execute(sql, args).fetchall()

    @contextmanager
    def transaction(self, *, light: bool = False, alone: str = "") -> Iterator[Transaction]:
        del alone  # there is one writer at a time in any case
        if not self._turn.acquire(timeout=PATIENCE_S):
            raise StoreFailed(_busy(self.shown))
        try:
            with _said(self.shown), self._borrowed() as connection:
                connection.execute(f"PRAGMA synchronous = {'NORMAL' if light else 'FULL'}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield _SqliteTransaction(connection)
                    if not light:
                        connection.execute("UPDATE changes SET number = number + 1")
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._turn.release()

    def revision(self) -> int | None:
        """Ask a read-only connection whether the file changed; only then read the count.

        Every request to a service calls it, so it must be cheap.
        """
        try:
            with self._looking:
                version = self._watch.execute("PRAGMA data_version").fetchone()[0]
                if version != self._seen[0]:
                    self._seen = version, self._watch.execute("SELECT number FROM changes").fetchone()[0]
                return self._seen[1]
        except sqlite3.Error as error:
            raise _ours(error, self.shown) from None

    def has_table(self, name: str) -> bool:
        return bool(self.read("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def close(self) -> None:
        with self._looking:
            self._watch.close()
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        """Lend a pooled connection to one thread at a time; the pool grows with concurrent use."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *args: object) -> list[Row]:
        return self._connection.execute(sql, args).fetchall()


@contextmanager
def _said(where: str) -> Iterator[None]:
    """Turn SQLite's errors about the file into WindlassErrors; errors in a statement are bugs and pass."""
    try:
        yield
    except sqlite3.Error as error:
        raise _ours(error, where) from None


def _ours(error: sqlite3.Error, where: str) -> Exception:
    return _translated(where, getattr(error, "sqlite_errorname", "")) or error


def _translated(where: str, name: str) -> WindlassError | None:
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreFailed(_busy(where))
    if name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return Conflict(f"{where}: that row exists already")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Damaged(f"{where}: is not a whole SQLite database", hint="restore it from a backup")
    if name.startswith("SQLITE_FULL"):
        return StoreFailed(
            f"{where}: no space left on the device",
            hint="nothing that was committed is lost; free some space",
        )
    if name.startswith("SQLITE_READONLY"):
        return StoreFailed(
            f"{where}: can be read but not written", hint="check the owner and the file system"
        )
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreFailed(f"{where}: cannot be opened", hint="check the directory, the owner and free space")
    if name.startswith("SQLITE_IOERR"):
        return StoreFailed(
            f"{where}: the disk failed, or is full", hint="nothing that was committed is lost; check the disk"
        )
    return None


def _busy(where: str) -> str:
    return f"{where}: locked by another process for more than {PATIENCE_S:.0f} s"
