"""tools/reaper and the plugin that names the test which left a process running."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a child subreaper is a thing of Linux")

ROOT = Path(__file__).parents[2]
REAPER = [sys.executable, str(ROOT / "tools" / "reaper")]
DAEMON = (
    "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
)
WAITS = """
import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
LEAVES = """
import subprocess, sys
def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def test_ends_its_process():
    subprocess.run([sys.executable, "-c", ""])
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_REAPER_GRACE_S", "0.5")


def reaped(
    *command: str,
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*REAPER, *command], capture_output=True, text=True, timeout=120)


def test_a_command_that_leaves_nothing_keeps_its_exit_code() -> None:
    for code in (0, 3):
        done = reaped(sys.executable, "-c", f"raise SystemExit({code})")
        assert done.returncode == code
        assert "0 left behind" in done.stderr


def test_a_daemon_in_its_own_session_is_listed_and_ended() -> None:
    done = reaped(sys.executable, "-c", DAEMON)
    assert done.returncode == 1
    assert "left behind: process" in done.stderr
    assert not psutil.pid_exists(int(done.stdout))


def test_temporary_files_are_listed_and_removed() -> None:
    done = reaped(sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())")
    assert done.returncode == 1
    assert "left behind: temporary file" in done.stderr
    assert not Path(done.stdout.strip()).exists()


def test_what_a_killed_command_started_ends_too() -> None:
    code = (
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {DAEMON!r}])\n"
        "os.kill(os.getpid(), 9)"
    )
    done = reaped(sys.executable, "-c", code)
    assert done.returncode == 128 + signal.SIGKILL
    assert not psutil.pid_exists(int(done.stdout))


def test_what_a_killed_reaper_left_is_removed_by_the_next_one() -> None:
    process = subprocess.Popen(
        [*REAPER, sys.executable, "-c", DAEMON + "\n"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    daemon = int(process.stdout.readline())
    folder = Path(psutil.Process(daemon).environ()["TMPDIR"])
    process.kill()
    process.wait()
    process.stdout.close()
    assert psutil.pid_exists(daemon)
    assert reaped(sys.executable, "-c", "").returncode == 0
    psutil.wait_procs([psutil.Process(daemon)] if psutil.pid_exists(daemon) else [], timeout=60)
    assert not psutil.pid_exists(daemon)
    assert not folder.exists()


def test_a_signal_interrupts_the_command() -> None:
    process = subprocess.Popen([*REAPER, sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(60) == 7
    process.stdout.close()


def test_a_test_that_leaves_a_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import leftovers\nleftovers.GRACE_S = 0.2\npytest_plugins = ['leftovers']\n"
    )
    (tmp_path / "test_it.py").write_text(LEAVES)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "plugins")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert re.search("2 passed, .*1 error", done.stdout), done.stdout
    assert "processes are still running after the test" in done.stdout
    assert "ERROR test_it.py::test_leaves_a_process" in done.stdout
