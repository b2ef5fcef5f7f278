"""A database on a PostgreSQL server, which several machines may share.

The URL is libpq's, and a password may be given as with libpq (~/.pgpass, $PGPASSWORD). Error messages of the
server are shown without the password. `pip install 'windlass[postgres]'` installs psycopg.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from windlass.spec.errors import BadInput, StoreFailed, WindlassError
from windlass.store.sql import PATIENCE_S, Conflict, Database, Row, Transaction

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as error:
    raise BadInput(
        "a postgresql:// URL needs psycopg, which is not installed", hint="pip install 'windlass[postgres]'"
    ) from error

Connection = psycopg.Connection[Row]
CONNECTIONS = 8
CHANNEL = "windlass"
HEARTBEAT_S = 2.0
LOST_AFTER_S = 3 * HEARTBEAT_S
RECONNECT_S = 0.5
MILLISECONDS = round(1000 * PATIENCE_S)
SESSION = {
    "connect_timeout": 3,
    "application_name": "windlass",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": MILLISECONDS,
}
# A client that hangs within a transaction must not block the others for longer than they wait.
OPTIONS = (
    f"-c statement_timeout={MILLISECONDS} -c lock_timeout={MILLISECONDS}"
    f" -c idle_in_transaction_session_timeout={MILLISECONDS // 2}"
)


class PostgresDatabase(Database):
    """The tables of one database of a server."""

    def __init__(self, url: str) -> None:
        try:
            self._given = {key: value for key, value in conninfo_to_dict(url).items() if value is not None}
        except psycopg.Error:
            raise BadInput(
                "the URL of the database cannot be read",
                hint="postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %40 for @ within a password",
            ) from None
        self.shown = _shown(self._given)
        self._idle: list[Connection] = []
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._listener: _Listener | None = None
        self._starting = threading.Lock()
        with self._borrowed():
            pass  # an unreachable server is reported now, not at the first use

    def read(self, sql: str, *args: object) -> list[Row]:
        with self._borrowed() as connection:
            return _run(connection, sql, args)

    @contextmanager
    def transaction(self, *, light: bool = False, alone: str = "") -> Iterator[Transaction]:
        with self._borrowed() as connection:
            connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            try:
                if light:
                    connection.execute("SET LOCAL synchronous_commit = off")
                if alone:  # before the first query, which fixes what this transaction sees
                    _run(connection, f"LOCK TABLE {alone} IN EXCLUSIVE MODE", ())
                yield _PostgresTransaction(connection)
                if not light:
                    connection.execute(f"NOTIFY {CHANNEL}")
                connection.execute("COMMIT")
            except BaseException:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise
        if not light and self._listener is not None:
            self._listener.count()

    def revision(self) -> int | None:
        with self._starting:
            if self._listener is None:
                self._listener = _Listener(self)
        return self._listener.revision()

    def has_table(self, name: str) -> bool:
        return bool(self.read("SELECT 1 WHERE to_regclass(?) IS NOT NULL", name))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        while self._idle:
            self._idle.pop().close()

    def connect(self) -> Connection:
        """Open a connection in autocommit mode."""
        given: dict[str, Any] = {**SESSION, **self._given}
        given["options"] = f"{OPTIONS} {self._given.get('options', '')}"
        with self._said():
            return psycopg.connect(autocommit=True, **given)

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """Lend a pooled connection to one thread at a time; a broken one is not reused."""
        if not self._room.acquire(timeout=PATIENCE_S):
            raise StoreFailed(f"{self.shown}: all {CONNECTIONS} connections are busy for {PATIENCE_S:.0f} s")
        try:
            connection = self._live()
            try:
                with self._said():
                    yield connection
            finally:
                if connection.closed:
                    connection.close()
                else:
                    self._idle.append(connection)
        finally:
            self._room.release()

    def _live(self) -> Connection:
        """Return a connection that the server has not closed, as far as this end knows."""
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if _answers(connection):
                    return connection
                connection.close()
        return self.connect()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn errors of server and network into WindlassErrors; errors in a statement are bugs and pass."""
        try:
            yield
        except psycopg.Error as error:
            ours = _translated(self.shown, error, self._secrets())
            if ours is None:
                raise
            raise ours from None

    def _secrets(self) -> list[str]:
        found = {str(self._given.get("password", "")), os.environ.get("PGPASSWORD", "")}
        return [secret for each in found if each for secret in (each, quote(each, safe=""))]


class _PostgresTransaction:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *args: object) -> list[Row]:
        return _run(self._connection, sql, args)


class _Listener:
    """A thread that counts commit notifications; without contact to the server the revision is unknown."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._number = 0
        self._counting = threading.Lock()
        self._contact_s = -LOST_AFTER_S
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="postgres-listener", daemon=True).start()

    def revision(self) -> int | None:
        return self._number if time.monotonic() - self._contact_s < LOST_AFTER_S else None

    def count(self) -> None:
        with self._counting:
            self._number += 1

    def close(self) -> None:
        """Let the thread end at its next heartbeat; does not wait for it."""
        self._ended.set()

    def _listen(self) -> None:
        while not self._ended.is_set():
            with suppress(WindlassError, psycopg.Error), self._database.connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                self.count()  # what happened before is unknown
                while not self._ended.is_set():
                    self._receive(connection)
            self._contact_s = -LOST_AFTER_S
            self._ended.wait(RECONNECT_S)

    def _receive(self, connection: Connection) -> None:
        """Count notifications until the next heartbeat, which detects a server that vanished."""
        connection.execute("SELECT 1")
        self._contact_s = time.monotonic()
        for _ in connection.notifies(timeout=HEARTBEAT_S):
            self.count()
            if self._ended.is_set() or time.monotonic() - self._contact_s > HEARTBEAT_S:
                break


def _run(connection: Connection, sql: str, args: tuple[object, ...]) -> list[Row]:
    cursor = connection.execute(_dialect(sql).encode(), args)
    return cursor.fetchall() if cursor.description is not None else []


@lru_cache(maxsize=1024)
def _dialect(sql: str) -> str:
    """Write `?` as psycopg's placeholder, except within quotes."""
    parts = sql.replace("%", "%%").split("'")
    parts[::2] = [part.replace("?", "%s") for part in parts[::2]]
    return "'".join(parts)


def _answers(connection: Connection) -> bool:
    """Return whether the connection is open: one that the server closed has an end of file to read."""
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLIN)
    return not watch.poll(0)


def _translated(where: str, error: psycopg.Error, secrets: list[str]) -> WindlassError | None:
    kinds = psycopg.errors
    if isinstance(error, kinds.SerializationFailure | kinds.DeadlockDetected | kinds.UniqueViolation):
        return Conflict(f"{where}: conflict with another transaction")
    if isinstance(error, kinds.DiskFull):
        return StoreFailed(f"{where}: no space left on the server", hint="nothing that was committed is lost")
    if isinstance(error, kinds.ReadOnlySqlTransaction):
        return StoreFailed(f"{where}: can be read but not written", hint="is it a standby server?")
    if isinstance(error, kinds.LockNotAvailable | kinds.QueryCanceled):
        return StoreFailed(f"{where}: locked, or too slow, for more than {PATIENCE_S:.0f} s")
    if isinstance(error, kinds.DataCorrupted | kinds.IndexCorrupted):
        return StoreFailed(f"{where}: the server says that its data are damaged")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreFailed(
            f"{where}: {_scrubbed(error, secrets)}",
            hint="check that the server runs, the address and the password",
        )
    return None


def _scrubbed(error: psycopg.Error, secrets: list[str]) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else "the connection was lost"
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _shown(given: dict[str, Any]) -> str:
    port = f":{given['port']}" if "port" in given else ""
    return f"postgresql://{given.get('host', 'localhost')}{port}/{given.get('dbname', '')}"
