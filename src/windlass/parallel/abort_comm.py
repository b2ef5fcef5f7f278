"""Aborts collectives that wait for a lost peer.

A collective waits for its peers in native code without a limit; a frozen machine or a cut cable closes no
connection. When the worker learns elsewhere that a peer is lost, it shuts down its own ends of the group's
connections: every wait on them fails at once, and the process continues with its memory intact.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


class GroupConnections:
    """The network connections that a process group opens; those that existed before are excluded."""

    def __init__(self) -> None:
        self._before = set(_sockets().values())
        self._own: set[str] | None = None

    def settle(self) -> None:
        """The group is complete: connections opened later do not belong to it."""
        self._own = set(_sockets().values()) - self._before

    def cut(self) -> None:
        """Shut the connections down in both directions, so that every wait on either side fails."""
        for descriptor, identity in _sockets().items():
            if identity not in self._before and (self._own is None or identity in self._own):
                _shut(descriptor)


def _shut(descriptor: int) -> None:
    """Shut a connection down; closed sockets and listeners are skipped."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.getpeername()
        connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, str]:
    """Return the open sockets with their identities; a descriptor number alone may be reused."""
    found: dict[int, str] = {}
    for entry in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        with contextlib.suppress(OSError):
            identity = os.readlink(entry)
            if identity.startswith("socket:"):
                found[int(entry.name)] = identity
    return found
