"""Frames on a connection and in a log."""

import os
import socket
from pathlib import Path

import pytest
import torch

from windlass.train.server.frames import MAGIC, PREFIX, BadFrame, FrameConnection, buffers_of
from windlass.train.server.log import UpdateLog


def pair() -> tuple[FrameConnection, FrameConnection]:
    one, other = socket.create_server(("127.0.0.1", 0)), socket.socket()
    other.connect(one.getsockname())
    accepted, _ = one.accept()
    one.close()
    return FrameConnection(accepted), FrameConnection(other)


def test_arrays_arrive_as_they_were_sent() -> None:
    here, there = pair()
    sent = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7),
        "c": torch.zeros(0, 4),
        "d": torch.tensor(2.5, dtype=torch.float64),
    }
    here.send(sent, do="push", task="t-1")
    frame = there.receive()
    assert frame.head == {"do": "push", "task": "t-1"}
    assert all(torch.equal(frame.arrays[name], sent[name]) for name in sent)
    assert here.bytes_sent == there.bytes_received


def test_a_frame_of_more_parts_than_the_kernel_takes_at_once_arrives() -> None:
    here, there = pair()
    sent = {f"w{n}": torch.full((3,), float(n)) for n in range(1500)}
    here.send(sent)
    assert torch.equal(there.receive().arrays["w1499"], sent["w1499"])


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFIX.pack(MAGIC, 1 << 31, 0),
        PREFIX.pack(MAGIC, 2, 0) + b"[]",
        PREFIX.pack(MAGIC, 33, 0) + b'{"arrays": [["a", "pickle", [1]]]}'[:33],
        b"".join(buffers_of({}, {"a": torch.zeros(4)}))[:-64] + b"",
    ],
)
def test_nonsense_ends_a_connection(said: bytes) -> None:
    here, there = pair()
    here._socket.sendall(said)
    here.close()
    with pytest.raises(ConnectionError):
        there.receive()


def test_a_stranger_cannot_make_a_server_allocate() -> None:
    here, there = pair()
    here._socket.sendall(PREFIX.pack(MAGIC, 10, 1 << 40))
    with pytest.raises(BadFrame):
        there.receive(max_head=4096, body=False)


def test_a_log_gives_back_what_was_written_up_to_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "servers" / "log-0"
    log = UpdateLog(path, number=0, servers=2, stage="network")
    assert log.reopen(5) == []
    log.append({"task": "a"}, {"w": torch.ones(4)})
    log.append({"commit": {"number": 6}})
    log.append({"task": "b"}, {"w": torch.ones(4)})
    log.close()
    os.truncate(path, path.stat().st_size - 3)  # its writer died in the middle of it
    again = UpdateLog(path, number=0, servers=2, stage="network")
    assert [frame.head for frame in again.reopen(5)] == [{"task": "a"}, {"commit": {"number": 6}}]
    again.append({"task": "c"})
    again.close()
    assert len(UpdateLog(path, number=0, servers=2, stage="network").reopen(5)) == 3


@pytest.mark.parametrize(("servers", "base", "kept"), [(3, 5, True), (2, 6, True), (2, 5, False)])
def test_a_log_of_something_else_is_begun_anew(tmp_path: Path, servers: int, base: int, kept: bool) -> None:
    path = tmp_path / "log-0"
    log = UpdateLog(path, number=0, servers=2, stage="network")
    log.reopen(5)
    log.append({"task": "a"})
    log.close()
    assert UpdateLog(path, number=0, servers=servers, stage="network", kept=kept).reopen(base) == []
    assert UpdateLog(path, number=0, servers=2, stage="network").reopen(5) == []


def test_a_log_of_another_boot_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = UpdateLog(tmp_path / "log-0", number=0, servers=1, stage="network")
    log.reopen(0)
    log.append({"task": "a"})
    monkeypatch.setattr("windlass.train.server.log.boot_id", lambda: "another")
    assert UpdateLog(tmp_path / "log-0", number=0, servers=1, stage="network").reopen(0) == []
