"""Launchers of several machines meet, act as one, and notice at once when one is gone."""

import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.cluster.launch import rendezvous
from windlass.cluster.launch.launcher import Launch, free_port
from windlass.cluster.launch.local_ranks import RankTask
from windlass.cluster.launch.remote_ranks import RemoteRanks
from windlass.cluster.launch.rendezvous import Nodes, host_rendezvous, join_rendezvous
from windlass.spec.errors import AskedWrongly, BadInput, InUse, ProcessFailed, WindlassError
from windlass.spec.protocol.link import Link, parse_address

MODULE = "made_up_rank"
PATIENCE_S = 60.0
MakeTask = Callable[..., RankTask]

NODE_1 = """
import sys
from windlass.cluster.launch.remote_ranks import NodeAgent
from windlass.cluster.launch.rendezvous import Nodes, join_rendezvous
from windlass.spec.errors import WindlassError

try:
    nodes = Nodes(2, 1, sys.argv[1], 60.0)
    done = NodeAgent(join_rendezvous(nodes), 1, "made_up_rank", print).run()
    print("done" if done else "stopped")
except WindlassError as error:
    print("failed:", error.message)
"""


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1', secrets.randbits(30))}"


@contextmanager
def node_1(address: str) -> Iterator["subprocess.Popen[str]"]:
    """Another launcher, as another machine would start it."""
    process = subprocess.Popen([sys.executable, "-c", NODE_1, address], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run_on_two(task: RankTask, address: str, tell: Callable[[dict[str, Any]], None]) -> bool:
    """Be node 0: rank 0 is here, rank 1 there."""
    with host_rendezvous(Nodes(2, 0, address, PATIENCE_S)) as group:
        done = Launch(group.rank_launchers(task.world, MODULE)).run(task, tell)
        group.finish(done=done)
        return done


def a_run(task: RankTask) -> RankTask:
    (Path(task.folder) / "run.json").write_text("{}")
    return task


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_two_nodes_are_done_together(task: MakeTask, address: str) -> None:
    events: list[dict[str, Any]] = []
    with node_1(address) as other:
        assert run_on_two(a_run(task([0.1], [0.1])), address, events.append)
        assert other.communicate()[0].splitlines()[-1] == "done"
    assert sorted(e["rank"] for e in events) == [0, 1]


@pytest.mark.slow
def test_a_death_there_ends_everything_here_and_both_say_whose(task: MakeTask, address: str) -> None:
    events: list[dict[str, Any]] = []
    with node_1(address) as other:
        with pytest.raises(ProcessFailed, match="rank 1 was killed by SIGKILL"):
            run_on_two(a_run(task(["deaf", "sleep"], [0.3, "die"])), address, events.append)
        assert "failed: rank 1 was killed by SIGKILL" in other.communicate()[0]
    assert all(gone(e["pid"]) for e in events)


@pytest.mark.slow
def test_a_node_that_goes_away_ends_the_run_and_its_own_ranks(task: MakeTask, address: str) -> None:
    pids: dict[int, int] = {}
    with node_1(address) as other:

        def kill_it(event: dict[str, Any]) -> None:
            pids[event["rank"]] = event["pid"]
            if event["rank"] == 1:
                other.kill()

        with pytest.raises(ProcessFailed, match=r"rank 1: node 1 \(127\.0\.0\.1\) disconnected"):
            run_on_two(a_run(task(["sleep"], ["wait"])), address, kill_it)
    until = time.monotonic() + PATIENCE_S
    while not gone(pids[1]) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(gone, pids.values()))


@pytest.mark.slow
def test_a_node_whose_node_0_goes_away_ends_its_ranks(task: MakeTask, address: str) -> None:
    made = a_run(task([], ["deaf", "sleep"]))
    with node_1(address) as other:
        with host_rendezvous(Nodes(2, 0, address, PATIENCE_S)) as group:
            away = RemoteRanks(group.links[0], 1, range(1, 2))
            away.start(made)
            told, until = list[Any](), time.monotonic() + PATIENCE_S
            while not told:
                assert time.monotonic() < until, "node 1 never said anything"
                told = away.poll()
                time.sleep(0.02)
        assert other.stdout is not None
        assert "lost node 0" in other.communicate(timeout=PATIENCE_S)[0]
    assert gone(told[0].event["pid"])


@pytest.mark.slow
def test_a_request_at_another_node_stops_the_run_everywhere(task: MakeTask, address: str) -> None:
    up: set[int] = set()
    with node_1(address) as other:

        def ask(event: dict[str, Any]) -> None:
            up.add(event.get("rank", 0))
            if up == {0, 1} and event["event"] == "up":
                other.terminate()

        assert run_on_two(a_run(task(["wait"], ["wait"])), address, ask) is False
        assert other.communicate()[0].splitlines()[-1] == "stopped"


@pytest.mark.slow
def test_a_node_that_does_not_see_the_run_says_so(task: MakeTask, address: str) -> None:
    with node_1(address), pytest.raises(BadInput, match="node 1: the run's directory") as caught:
        run_on_two(task(["sleep"], ["sleep"]), address, lambda _event: None)
    assert "share" in str(caught.value.hint)


def test_absent_nodes_are_not_waited_for_for_ever(address: str) -> None:
    with (
        pytest.raises(ProcessFailed, match=r"no answer from nodes 1, 2 at .* within 0\.2 s"),
        host_rendezvous(Nodes(3, 0, address, 0.2)),
    ):
        pass


def test_an_absent_node_0_is_not_waited_for_for_ever(address: str) -> None:
    with pytest.raises(ProcessFailed, match="no answer from node 0"):
        join_rendezvous(Nodes(2, 1, address, 0.2))


def test_a_node_0_that_comes_later_is_found(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, refused = list[Link](), threading.Event()

    def sleep(seconds: float) -> None:
        refused.set()
        time.sleep(seconds)

    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    thread = threading.Thread(target=lambda: joined.append(join_rendezvous(Nodes(2, 1, address, PATIENCE_S))))
    thread.start()
    assert refused.wait(PATIENCE_S)
    with host_rendezvous(Nodes(2, 0, address, PATIENCE_S)) as group:
        thread.join()
        group.links[0].send(hi=1)
        assert joined[0].answer(PATIENCE_S) == {"hi": 1}
    joined[0].close()


@pytest.mark.parametrize(
    ("nodes", "rank", "reason"), [(3, 1, "it has --nodes 3"), (2, 5, "--node-rank must be one of 1 to 1")]
)
def test_a_node_that_does_not_fit_is_reported_why(
    address: str, monkeypatch: pytest.MonkeyPatch, nodes: int, rank: int, reason: str
) -> None:
    """Node 0's time is over once the answer is there: it looks at the clock when the next one connects."""
    answers: list[Any] = []
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + 2 * PATIENCE_S * len(answers), sleep=time.sleep
    )
    monkeypatch.setattr(rendezvous, "time", clock)

    def misfit() -> None:
        link = join_rendezvous(Nodes(nodes, rank, address, PATIENCE_S))
        answers.append(link.answer(PATIENCE_S))
        link.close()
        socket.create_connection(parse_address(address)).close()

    thread = threading.Thread(target=misfit)
    thread.start()
    with (
        pytest.raises(ProcessFailed, match="no answer from node 1"),
        host_rendezvous(Nodes(2, 0, address, PATIENCE_S)),
    ):
        pass
    thread.join()
    assert reason in answers[0]["failed"]["message"]


def test_a_stranger_does_not_disturb(address: str) -> None:
    def meet() -> None:
        host, port = parse_address(address)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                with socket.create_connection((host, port)) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    stranger.recv(10)
                break
            except OSError:
                time.sleep(0.02)
        link = join_rendezvous(Nodes(2, 1, address, PATIENCE_S))
        link.answer(PATIENCE_S)
        link.close()

    thread = threading.Thread(target=meet)
    thread.start()
    with host_rendezvous(Nodes(2, 0, address, PATIENCE_S)) as group:
        assert len(group.links) == 1
    thread.join()


def test_an_error_while_preparing_is_reported_to_all(address: str) -> None:
    told: list[Any] = []

    def node() -> None:
        link = join_rendezvous(Nodes(2, 1, address, PATIENCE_S))
        told.append(link.answer(PATIENCE_S))
        link.close()

    thread = threading.Thread(target=node)
    thread.start()
    with pytest.raises(WindlassError, match="no corpus"), host_rendezvous(Nodes(2, 0, address, PATIENCE_S)):
        raise BadInput("no corpus")
    thread.join()
    assert told[0]["failed"]["message"] == "no corpus"


def test_an_address_of_another_machine_is_refused() -> None:
    with (
        pytest.raises(InUse, match="cannot listen there"),
        host_rendezvous(Nodes(2, 0, "192.0.2.1:29400", 1.0)),
    ):
        pass


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(AskedWrongly, match="write it as HOST:PORT"):
        parse_address(text)


def test_a_link_carries_messages_whole_and_in_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = Link(socket.create_connection(server.getsockname()))
        right = Link(server.accept()[0])
    for number in range(200):
        left.send(number=number, text="é" * 100)
    heard: list[Any] = []
    while len(heard) < 200:
        message = right.answer(PATIENCE_S)
        assert message is not None
        heard.append(message["number"])
    assert heard == list(range(200))
    left.close()
    assert right.answer(PATIENCE_S) is None
    assert right.closed
