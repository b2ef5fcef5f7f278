"""Connections of a group can be cut from inside, and only those."""

import socket

import pytest

from windlass.parallel.abort_comm import DESCRIPTORS, GroupConnections

pytestmark = pytest.mark.skipif(not DESCRIPTORS.exists(), reason="needs /proc")


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return here, server.accept()[0]


def lives(one: socket.socket, other: socket.socket) -> bool:
    try:
        one.sendall(b"x")
        other.settimeout(5)
        return other.recv(1) == b"x"
    except OSError:
        return False


def test_connections_of_the_group_are_cut_and_others_live() -> None:
    before = pair()
    connections = GroupConnections()
    during = pair()
    connections.settle()
    after = pair()
    connections.cut()
    assert lives(*before)
    assert lives(*after)
    assert not lives(*during)
    for one in (*before, *during, *after):
        one.close()


def test_a_group_that_is_still_forming_is_cut_too_and_its_listener_stays() -> None:
    connections = GroupConnections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there = server.accept()[0]
        connections.cut()
        assert not lives(here, there)
        again = socket.create_connection(server.getsockname())
        assert lives(again, server.accept()[0])
    connections.cut()  # what its owner has closed meanwhile is no trouble
