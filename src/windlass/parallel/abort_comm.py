"""Ends waits for processes that do not answer.

A collective waits for its peers in native code, as long as it takes; a frozen machine or a cut cable closes
no connection. Whoever learns elsewhere that a peer is lost cuts this process's own ends of the connections
that the group has: every wait on them then fails at once, and the process goes on with its memory intact.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


class GroupConnections:
    """The network connections that a group of processes opens, told from those that were there before."""

    def __init__(self) -> None:
        self._before = set(_sockets().values())
        self._own: set[str] | None = None

    def settle(self) -> None:
        """The group is complete: connections that come later are for something else."""
        self._own = set(_sockets().values()) - self._before

    def cut(self) -> None:
        """Close them for both sides, so that everybody who waits on one hears of it."""
        for descriptor, identity in _sockets().items():
            if identity not in self._before and (self._own is None or identity in self._own):
                _shut(descriptor)


def _shut(descriptor: int) -> None:
    """One that its owner has closed meanwhile needs nothing; a listener waits for nobody."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.getpeername()
        connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, str]:
    """Return the open sockets with their identities; a number alone may be given to another one."""
    found: dict[int, str] = {}
    for entry in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        with contextlib.suppress(OSError):
            identity = os.readlink(entry)
            if identity.startswith("socket:"):
                found[int(entry.name)] = identity
    return found
