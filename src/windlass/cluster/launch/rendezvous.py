"""Connects the launchers of several machines.

Node 0 listens at the rendezvous address and waits for all others, then prepares the run, then gives each its
ranks (`remote_ranks`). Every wait has a timeout with a reason.

Nodes are not authenticated: use the rendezvous only on a network whose users trust each other, as for
torch's own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windlass import __version__
from windlass.cluster.launch.local_ranks import LocalRanks, RankLauncher
from windlass.cluster.launch.remote_ranks import RemoteRanks
from windlass.spec.errors import BadInput, InUse, ProcessFailed, WindlassError
from windlass.spec.protocol.entrypoint import error_event
from windlass.spec.protocol.link import Link, parse_address

HELLO_S = 5.0
"""For a node that has connected to send its hello."""
RETRY_S = 0.25


@dataclass(frozen=True)
class Nodes:
    """The number of nodes, the rank of this one, and the rendezvous address."""

    count: int = 1
    rank: int = 0
    rendezvous: str = ""
    patience_s: float = 60.0


@dataclass(frozen=True)
class NodeGroup:
    """All machines of a run, as node 0 sees them."""

    host: str = "127.0.0.1"
    """The address of node 0."""
    links: tuple[Link, ...] = ()
    """To the other nodes, node 1's first."""

    def rank_launchers(self, world: int, module: str) -> list[RankLauncher]:
        """Divide `world` ranks equally among the machines, node 0's first."""
        each, rest = divmod(world, 1 + len(self.links))
        assert not rest, f"{world} ranks on {1 + len(self.links)} nodes"
        remote = [
            RemoteRanks(link, i, range(i * each, (i + 1) * each))
            for i, link in enumerate(self.links, start=1)
        ]
        return [LocalRanks(range(each), module), *remote]

    def finish(self, *, done: bool) -> None:
        """Notify all nodes that the run is over."""
        for link in self.links:
            link.send(over={"done": done})


@contextlib.contextmanager
def host_rendezvous(nodes: Nodes) -> Iterator[NodeGroup]:
    """Wait for all other nodes. An error in the block is sent to all of them."""
    if nodes.count == 1:
        yield NodeGroup()
        return
    links: dict[int, Link] = {}
    try:
        _gather(nodes, links)
        yield NodeGroup(parse_address(nodes.rendezvous)[0], tuple(links[node] for node in sorted(links)))
    except WindlassError as error:
        for link in links.values():
            link.send(failed=error_event(error))
        raise
    finally:
        for link in links.values():
            link.close()


def join_rendezvous(nodes: Nodes) -> Link:
    """Connect to node 0, which may start later, and send a hello."""
    address, until = parse_address(nodes.rendezvous), time.monotonic() + nodes.patience_s
    while True:
        try:
            link = Link(socket.create_connection(address, timeout=max(RETRY_S, until - time.monotonic())))
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(RETRY_S)
                continue
            raise ProcessFailed(
                f"no answer from node 0 at {nodes.rendezvous} within {nodes.patience_s:g} s: {error}",
                hint="start the same command there with --node-rank 0, or give a longer --patience",
            ) from None
        link.send(hello={"node": nodes.rank, "nodes": nodes.count, "version": __version__})
        return link


def _gather(nodes: Nodes, links: dict[int, Link]) -> None:
    """Fill `links` with those of all other nodes, or raise which nodes are missing."""
    until = time.monotonic() + nodes.patience_s
    with _listening(nodes.rendezvous) as server:
        while len(links) < nodes.count - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                link = Link(server.accept()[0])
            except TimeoutError:
                raise _absent(nodes, links) from None
            _admit(link, nodes, links)


def _admit(link: Link, nodes: Nodes, links: dict[int, Link]) -> None:
    """Admit a node, or send the reason of the refusal; close connections without a valid hello."""
    message = link.answer(HELLO_S)
    hello = message.get("hello") if message else None
    if not isinstance(hello, dict):
        link.close()
        return
    node = hello.get("node")
    reason = _misfit(hello, nodes, links)
    if reason is None:
        links[int(str(node))] = link
        return
    link.send(failed=error_event(BadInput(f"node {node} cannot join at {nodes.rendezvous}: {reason}")))
    link.close()


def _misfit(hello: dict[str, Any], nodes: Nodes, links: dict[int, Link]) -> str | None:
    node, count, version = (hello.get(key) for key in ("node", "nodes", "version"))
    if version != __version__:
        return f"it has windlass {version}, node 0 has {__version__}"
    if count != nodes.count:
        return f"it has --nodes {count}, node 0 has --nodes {nodes.count}"
    if node not in range(1, nodes.count):
        return f"its --node-rank must be one of 1 to {nodes.count - 1}"
    if node in links and not links[node].closed:
        return f"another machine ({links[node].peer}) has that --node-rank"
    return None


def _absent(nodes: Nodes, links: dict[int, Link]) -> ProcessFailed:
    missing = [node for node in range(1, nodes.count) if node not in links]
    who = f"node {missing[0]}" if len(missing) == 1 else f"nodes {', '.join(map(str, missing))}"
    return ProcessFailed(
        f"no answer from {who} at {nodes.rendezvous} within {nodes.patience_s:g} s",
        hint=f"start the same command there with --node-rank {missing[0]}, or give a longer --patience",
    )


def _listening(rendezvous: str) -> socket.socket:
    try:
        return socket.create_server(parse_address(rendezvous), backlog=64)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InUse(
            f"--rendezvous {rendezvous}: cannot listen there: {reason.lower()}",
            hint="give an address of this machine, node 0, and a port that is free",
        ) from None
