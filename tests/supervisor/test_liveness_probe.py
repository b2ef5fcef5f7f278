"""What counts as the silence of a replica."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from windlass.spec.protocol.wire import Pong, Ready, frame
from windlass.supervisor import liveness_probe as pulse_module
from windlass.supervisor.liveness_probe import LivenessProbe

PATIENCE_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "engine"))
        listening.listen()
        yield listening


def until(true: object) -> None:
    assert callable(true)
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def greeted(server: socket.socket, pulse: LivenessProbe) -> socket.socket:
    connection, _ = server.accept()
    connection.sendall(frame(Ready("m@1", "llama", 1, 64, 100, 8, 4, 1)))
    until(lambda: pulse.ready is not None)
    return connection


def test_a_replica_that_says_nothing_is_silent_until_it_speaks(server: socket.socket, tmp_path: Path) -> None:
    pulse = LivenessProbe(tmp_path / "engine", lambda: None)
    with closing(pulse), greeted(server, pulse) as connection:
        until(lambda: pulse.silent_s >= 0.75)
        connection.sendall(frame(Pong(1, 0, 0, 0)))
        until(lambda: pulse.silent_s == 0.0)


def test_a_replica_that_hangs_up_and_cannot_be_reached_is_silent(
    server: socket.socket, tmp_path: Path
) -> None:
    pulse = LivenessProbe(tmp_path / "engine", lambda: None)
    with closing(pulse):
        greeted(server, pulse).close()
        server.close()
        until(lambda: pulse.silent_s >= 0.75)


def test_time_without_a_listener_is_no_silence(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who feels the pulse stands still between a ping and the answer, which has come meanwhile."""
    frozen, woken, whole = threading.Event(), threading.Event(), pulse_module.take_frames

    def stand_still(buffer: bytearray) -> object:
        frozen.set()
        woken.wait(PATIENCE_S)
        return whole(buffer)

    pulse = LivenessProbe(tmp_path / "engine", lambda: None)
    with closing(pulse), greeted(server, pulse) as connection:
        connection.sendall(frame(Pong(1, 0, 0, 0)))
        until(lambda: pulse.silent_s == 0.0)
        monkeypatch.setattr(pulse_module, "take_frames", stand_still)
        connection.sendall(frame(Pong(2, 0, 0, 0)))
        assert frozen.wait(PATIENCE_S)
        time.sleep(0.8)
        assert pulse.silent_s < 0.75
        woken.set()
