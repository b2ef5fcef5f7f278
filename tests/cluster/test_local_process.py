"""Processes on this machine: what they tell, how they end, and that none is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from windlass.cluster.launch.local_process import LocalProcess, error_of
from windlass.spec.errors import BadInput, ProcessFailed, WindlassError

WORKER = """
import sys, time
from windlass.spec.protocol.entrypoint import emit, run_entrypoint
from windlass.spec.errors import BadInput

def main(argv):
    what = argv[0]
    print("a library prints")
    emit({"event": "begun"})
    if what == "done":
        emit({"done": {"answer": 42}})
    elif what == "refuse":
        raise BadInput("no such thing", hint="try another")
    elif what == "crash":
        raise RuntimeError("a bug of ours")
    elif what == "stubborn":
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        emit({"event": "deaf"})
        time.sleep(600)
    else:
        time.sleep(600)

if __name__ == "__main__":
    run_entrypoint(main)
"""


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_worker.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def launch(tmp_path: Path, what: str) -> LocalProcess:
    return LocalProcess("made-up", "made_up_worker", [what], tmp_path / "logs" / "log")


def gone(pid: int) -> bool:
    """Wait until a process is no more, or only a zombie."""
    for _ in range(400):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_process_reports_events_and_a_result(tmp_path: Path) -> None:
    with launch(tmp_path, "done") as process:
        assert process.result() == {"answer": 42}
        assert process.exit_code == 0


def test_an_error_of_a_process_is_raised_as_what_it_was(tmp_path: Path) -> None:
    with launch(tmp_path, "refuse") as process, pytest.raises(BadInput, match="no such thing") as caught:
        process.result()
    assert caught.value.hint == "try another"
    assert process.exit_code == 2


def test_a_crash_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with launch(tmp_path, "crash") as process, pytest.raises(ProcessFailed) as caught:
        process.result()
    assert "ended with code 1" in caught.value.message
    assert "a bug of ours" in str(caught.value.hint)


def test_a_killed_process_is_reported_by_its_signal(tmp_path: Path) -> None:
    with launch(tmp_path, "sleep") as process:
        next(process.events())
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ProcessFailed, match="killed by SIGKILL"):
            process.check()


def test_stopping_is_polite_first_and_forced_then(tmp_path: Path) -> None:
    with launch(tmp_path, "sleep") as polite:
        next(polite.events())
        assert polite.stop() == -signal.SIGTERM
    with launch(tmp_path, "stubborn") as stubborn:
        events = stubborn.events()
        next(events)
        next(events)
        assert stubborn.stop(grace_s=0.2) == -signal.SIGKILL


def test_nothing_is_left_when_the_block_ends(tmp_path: Path) -> None:
    with launch(tmp_path, "sleep") as process:
        next(process.events())
    assert process.exit_code is not None


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from windlass.cluster.launch.local_process import LocalProcess\n"
        f"p = LocalProcess('made-up', 'made_up_worker', ['sleep'], Path({str(tmp_path / 'log')!r}))\n"
        "next(p.events()); print(p.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


def test_an_error_of_unknown_kind_is_still_an_error() -> None:
    for kind in ("Nonsense", "annotations", "", None):
        told = error_of({"kind": kind, "message": "what happened"})
        assert type(told) is WindlassError
        assert told.message == "what happened"
