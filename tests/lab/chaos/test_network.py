import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from windlass.lab.chaos.network import Network, networks, why_no_network

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("up", flush=True)
    while True:
        connection, _ = server.accept()
        while data := connection.recv(100):
            connection.sendall(data)
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=5)
connection.settimeout(float(sys.argv[2]))
for line in sys.stdin:
    try:
        connection.sendall(b"ping")
        print(connection.recv(100).decode(), flush=True)
    except TimeoutError:
        print("silence", flush=True)
"""
SENDER = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2]))).sendall(bytes(10**6))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    reason = why_no_network()
    if reason is not None:
        pytest.skip(reason)
    with Network(3) as made:
        yield made
    assert f"wlc{os.getpid()}" not in networks()


class Talk:
    """A server on one machine and a client on another that asks it when told to."""

    def __init__(self, network: Network, server: int, client: int) -> None:
        there = [sys.executable, "-c", SERVER, network.address(server)]
        here = [sys.executable, "-c", CLIENT, network.address(server), "1"]
        self._server = subprocess.Popen([*network.within(server), *there], stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "up\n"
        self._client = subprocess.Popen(
            [*network.within(client), *here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self) -> str:
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write("go\n")
        self._client.stdin.flush()
        return self._client.stdout.readline().strip()

    def close(self) -> None:
        for process in (self._client, self._server):
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_cut_silences_a_connection_without_closing_it_and_a_mended_one_continues(network: Network) -> None:
    talk = Talk(network, 0, 1)
    try:
        assert talk.ask() == "ping"
        network.cut([1])
        assert talk.ask() == "silence"
        network.mend([1])
        heard = talk.ask()  # what was sent meanwhile arrives too
        assert heard.startswith("ping")
    finally:
        talk.close()


@pytest.mark.slow
def test_machines_that_are_cut_off_together_still_reach_each_other(network: Network) -> None:
    talk = Talk(network, 0, 1)
    try:
        assert talk.ask() == "ping"
        network.cut([0, 1])
        assert talk.ask() == "ping"
    finally:
        talk.close()


def test_a_slow_network_is_slow_while_it_lasts(network: Network) -> None:
    if not network.delay:
        pytest.skip("this kernel has no queue that delays packets")

    def seconds() -> float:
        """Send a megabyte from one machine to another through this one's bridge."""
        begin = time.monotonic()
        with socket.create_server((network.host, 0)) as server:
            port = server.getsockname()[1]
            sender = subprocess.Popen(
                [*network.within(1), sys.executable, "-c", SENDER, network.host, str(port)]
            )
            connection, _ = server.accept()
            with connection:
                while connection.recv(1 << 16):
                    pass
        assert sender.wait() == 0
        return time.monotonic() - begin

    quick = seconds()
    network.slow_down(1)
    slow = seconds()
    network.speed_up(1)
    assert slow > quick + 0.2
    assert seconds() < slow
