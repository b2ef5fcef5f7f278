"""What several rooms test with: the databases that hold a service's state, SQLite and a real PostgreSQL."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from windlass.store.database import sqlite_url

# Time is measured by `windlass bench`: an example that takes long on a busy machine is no failure.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")

PASSWORD = "s3cret@:/%pass"
ACCOUNT = "postgres"


@dataclass(frozen=True)
class PostgresServer:
    """A PostgreSQL of our own: by Unix socket, or on loopback with a password."""

    programs: Path
    folder: Path
    port: int
    password: str = PASSWORD

    @property
    def url(self) -> str:
        return f"postgresql://{ACCOUNT}@/{ACCOUNT}?host={self.folder}&port={self.port}"

    def new_database(self) -> str:
        """Return the URL of an empty database: a schema of its own, which takes less time to make."""
        import psycopg

        name = f"t{secrets.token_hex(6)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def start(self) -> None:
        settings = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self) -> None:
        """End it as a crash would: what was not committed is undone when it starts again."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            for path in (self.folder, secret):
                shutil.chown(path, ACCOUNT, ACCOUNT)
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        self._run("initdb", "-U", ACCOUNT, "-E", "UTF8", "--locale=C.UTF-8", *options)

    def _run(self, program: str, *args: str) -> None:
        account = ACCOUNT if os.getuid() == 0 else None
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *args]
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            user=account,
            cwd=self.folder,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server, which ends with the session."""
    pytest.importorskip("psycopg", reason="psycopg (the extra `postgres`) is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed; ./test installs it where it may")
    if os.getuid() == 0 and ACCOUNT not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip(f"PostgreSQL does not run as root, and there is no user '{ACCOUNT}'")
    folder = Path(
        tempfile.mkdtemp(prefix="windlass-pg-")
    )  # short, for the socket; pytest's own is root's alone
    server = PostgresServer(found[-1].parent, folder, _free_port())
    try:
        server.make()
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database; what uses it runs once with each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "service.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def leaks() -> Callable[[Path, Iterable[str]], list[str]]:
    """Tell in which files below a folder, databases included, any of some secrets can be read."""

    def find(folder: Path, secrets: Iterable[str]) -> list[str]:
        wanted = [secret.encode() for secret in secrets]
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files, f"{folder}: nothing to look through"
        return [str(path) for path in files if any(secret in path.read_bytes() for secret in wanted)]

    return find


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
