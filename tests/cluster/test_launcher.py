"""Ranks are started, heard and ended together, and the one that is to blame is named."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.cluster.launch import exit_status
from windlass.cluster.launch.cores import divide_cores, own_cores
from windlass.cluster.launch.launcher import PORTS, Launch, free_port, interrupts
from windlass.cluster.launch.local_ranks import LocalRanks, RankTask
from windlass.spec.errors import BadInput, WindlassError

pytestmark = pytest.mark.slow

MODULE = "made_up_rank"
MakeTask = Callable[..., RankTask]


class Listener:
    """Remembers what was told; knows the ranks' processes."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    @property
    def pids(self) -> list[int]:
        return [e["pid"] for e in self.events if "pid" in e]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def launched(task: RankTask) -> Launch:
    return Launch([LocalRanks(range(task.world), MODULE)])


def failure(task: RankTask) -> tuple[WindlassError, Listener]:
    """Run a task that must fail; return its error, and what was told."""
    listener = Listener()
    with pytest.raises(WindlassError) as caught:
        launched(task).run(task, listener)
    return caught.value, listener


def test_ranks_that_end_well_are_done(task: MakeTask) -> None:
    made = task([0.1], [0.2])
    assert launched(made).run(made, Listener())


def test_each_rank_stays_on_its_cores_with_a_thread_for_each(task: MakeTask) -> None:
    made, listener = task([], []), Listener()
    launched(made).run(made, listener)
    cores = {e["rank"]: e["cores"] for e in listener.events}
    assert cores == {rank: sorted(share) for rank, share in enumerate(divide_cores(own_cores(), 2))}
    assert all(e["threads"] == str(len(e["cores"])) for e in listener.events)


def test_a_killed_rank_is_named_and_the_others_are_ended(task: MakeTask) -> None:
    error, listener = failure(task(["sleep"], ["die"], ["deaf", "sleep"]))
    assert "rank 1 was killed by SIGKILL" in error.message
    assert all(map(gone, listener.pids))


def test_a_lost_connection_does_not_hide_the_death_behind_it(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_status, "LATE_S", 60.0)  # for the death, however late it is seen here
    error, _ = failure(task(["lose"], [0.8, "crash"], ["lose"]))
    assert error.message == "rank 1 ended with code 1"
    assert "a bug of ours" in str(error.hint)


def test_an_error_that_a_rank_reports_is_the_error(task: MakeTask) -> None:
    error, _ = failure(task(["sleep"], ["refuse"]))
    assert isinstance(error, BadInput)
    assert error.message == "rank 1: no such thing"


def test_what_a_dead_rank_started_is_ended_too(task: MakeTask) -> None:
    _, listener = failure(task(["child", "die"], ["sleep"]))
    assert len(listener.pids) == 3
    assert all(map(gone, listener.pids))


def test_warnings_say_whose_they_are(task: MakeTask) -> None:
    made, listener = task([], ["warn"]), Listener()
    launched(made).run(made, listener)
    assert [e["message"] for e in listener.events if "message" in e] == ["rank 1: careful"]


def test_the_log_has_every_line_with_its_rank(task: MakeTask) -> None:
    made = task([], ["crash"])
    failure(made)
    lines = (Path(made.folder) / "process.log").read_text().splitlines()
    assert "[rank 0] rank 0 speaks" in lines
    assert "[rank 1] RuntimeError: a bug of ours" in lines


@pytest.mark.parametrize(
    ("deeds", "requests"), [(["wait"], 1), (["deaf", "sleep"], 2)], ids=["asked once", "asked twice"]
)
def test_ranks_stop_on_the_first_signal_and_are_ended_on_the_second(
    task: MakeTask, deeds: list[str], requests: int
) -> None:
    made, listener = task(deeds, deeds), Listener()
    launch = launched(made)

    def ask(event: dict[str, Any]) -> None:
        listener(event)
        if len(listener.pids) == 2 and not launch.stop_requests:
            for _ in range(requests):
                launch.interrupt()

    assert launch.run(made, ask) is False
    assert all(map(gone, listener.pids))


def test_a_signal_asks_instead_of_ending_the_launcher() -> None:
    asked: list[int] = []
    with interrupts(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert len(asked) == 2


def test_ranks_end_some_time_after_a_killed_launcher(task: MakeTask) -> None:
    made = task(["deaf", "sleep"], ["wait"])
    script = (
        "import windlass.cluster.launch.launcher as launch, windlass.cluster.launch.local_ranks as ranks\n"
        f"task = ranks.{made!r}\n"
        f"hands = [ranks.LocalRanks(range(2), {MODULE!r})]\n"
        "launch.Launch(hands).run(task, lambda event: print(event.get('pid'), flush=True))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until = time.monotonic() + 60
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert all(map(gone, pids))


def test_a_free_port_has_no_listener() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)):
        first = free_port("127.0.0.1", 77)
        with socket.create_server(("127.0.0.1", first)):
            assert free_port("127.0.0.1", 77) != first
    assert first in PORTS


def test_a_listener_that_fails_leaves_no_rank_behind(task: MakeTask) -> None:
    made = task(["sleep"])
    hands = LocalRanks(range(1), MODULE)
    with pytest.raises(RuntimeError, match="listener"):
        Launch([hands]).run(made, lambda _event: (_ for _ in ()).throw(RuntimeError("listener")))
    assert hands.pids == []
