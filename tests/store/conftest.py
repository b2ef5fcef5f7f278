"""The stores that every contract of this room is tested against.

file, memory   as they are
s3             a real server (SeaweedFS)
gs             an emulator of Google's (gcp-storage-emulator), which knows no conditions on writes
oss, webhdfs   doubles of their protocols, beside this file: no such server can be had here
"""

import importlib.util
import secrets
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from windlass.store.store_dir import StoreDir

BEYOND_THE_EMULATOR = {
    "test_a_write_that_fails_leaves_the_old_file": "uploads cannot be given up",
    "test_damage_on_the_way_out_does_not_reach_the_mirror": "uploads cannot be given up",
    "test_of_all_that_create_a_file_one_learns_that_it_did": "writes have no conditions",
}
"""What gcp-storage-emulator does not do, by the tests that need it."""
STORES = (
    "file",
    "memory",
    "s3",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gs", "oss", "webhdfs")),
)


@pytest.fixture(scope="session")
def gs_url() -> Iterator[str]:
    """An emulator of Google's store with one bucket."""
    pytest.importorskip("gcsfs", reason="gcsfs (the extra `gcs`) is not installed")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not here")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    with server, pytest.MonkeyPatch.context() as patch:
        address, port = server._api._httpd.socket.getsockname()[:2]
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}:{port}")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask for a bucket's kind by gRPC
        yield "gs://bucket"


@pytest.fixture(scope="session")
def oss_url() -> Iterator[str]:
    """A double of Alibaba's store with one bucket."""
    pytest.importorskip("ossfs", reason="ossfs (the extra `oss`) is not installed")
    double = beside("oss_double")
    with running(double.OssDouble()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSS_ENDPOINT", server.url)
        patch.setenv("OSS_ACCESS_KEY_ID", double.KEY)
        patch.setenv("OSS_ACCESS_KEY_SECRET", double.SECRET)
        yield f"oss://{double.BUCKET}"


@pytest.fixture(scope="session")
def webhdfs_url() -> Iterator[str]:
    """A double of a name node."""
    with running(beside("webhdfs_double").WebHdfsDouble()) as server:
        yield f"{server.url}/user"


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreDir:
    if request.param == "file":
        return StoreDir(tmp_path / "here")
    if request.param == "memory":
        return StoreDir(f"memory://test-{secrets.token_hex(4)}")
    lacks = BEYOND_THE_EMULATOR.get(request.function.__name__)
    if request.param == "gs" and lacks is not None:
        pytest.skip(f"gcp-storage-emulator: {lacks}")
    return StoreDir(f"{request.getfixturevalue(f'{request.param}_url')}/{secrets.token_hex(4)}")


class running:  # noqa: N801
    """Let a server answer in threads of its own until the block ends."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server

    def __enter__(self) -> Any:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def beside(name: str) -> Any:
    """Load a module that lies beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
