"""Elastic runs: started, joined by further machines, scaled.

Node 0 prepares the run and sends its directory to the other machines; from then on all machines are equal,
and the run survives the loss of any of them (elastic.agent, elastic.coordinator).
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import error_of
from windlass.cluster.launch.rendezvous import NodeGroup, Nodes, join_rendezvous
from windlass.elastic.agent import Agent, AgentSite
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.protocol.elastic import COORDINATOR, OVER, WORKERS
from windlass.spec.protocol.link import Link, parse_address
from windlass.spec.protocol.server_registry import SERVERS
from windlass.spec.run import RUN_FILE
from windlass.store.lease import leader
from windlass.store.lock import locked
from windlass.store.settings_file import resume_run, who
from windlass.store.store_dir import StoreDir

CONNECT_S = 1.0

Tell = Callable[[dict[str, Any]], None]


def train_elastic(
    folder: RunFolder, tell: Tell, *, workers: int | None = None, node_group: NodeGroup | None = None
) -> bool:
    """Train with `workers` that may join and leave. Return False when the run was stopped.

    If the run is active on other machines (this one had left it), this machine joins it as it is.
    """
    node_group = node_group or NodeGroup()
    with locked(folder.path / ".lock", f"run {folder.name}"):
        host = address_towards_leader(folder)
        if host is None:
            begin(folder, workers, nodes=1 + len(node_group.links))
        for link in node_group.links:
            link.send(elastic={"folder": str(folder.path)})
        return Agent(AgentSite(folder.path, "node0", host or node_group.host), tell).run()


def join_elastic(nodes: Nodes, tell: Tell, running: RunFolder | None = None) -> bool:
    """Take part from another machine: in the run `running`, or in the run that node 0 names.

    Return False when the run was stopped.
    """
    host = address_towards_leader(running) if running is not None else None
    if running is not None and host is not None:
        return Agent(AgentSite(running.path, f"node{nodes.rank}", host), tell).run()
    link = join_rendezvous(nodes)
    try:
        folder, host = _receive_folder(link, nodes), link.own
    finally:
        link.close()
    return Agent(AgentSite(folder, f"node{nodes.rank}", host), tell).run()


def address_towards_leader(folder: RunFolder) -> str | None:
    """Return the address of this machine as the leader of the run sees it; None if there is no leader."""
    path = folder.path
    found = leader(StoreDir(path / COORDINATOR)) if (path / COORDINATOR).is_dir() else None
    if found is None or (path / OVER).exists():
        return None
    with (
        contextlib.suppress(OSError),
        socket.create_connection(parse_address(found.address), timeout=CONNECT_S) as connection,
    ):
        return str(connection.getsockname()[0])
    return None


def write_workers_request(folder: Path, workers: int, by: str, *, nodes: int | None = None) -> None:
    """Request a number of workers; the leader reads the request within a moment.

    They are spread over `nodes` machines; None keeps the number of machines.
    """
    with locked(folder / ".workers.lock", f"the number of workers of run {folder.parent.name}/{folder.name}"):
        before = read_workers_request(folder) or {"id": 0, "workers": 0, "nodes": 1}
        request = {"workers": workers, "nodes": nodes or before["nodes"]}
        if request != {key: before[key] for key in request}:
            record = {"id": int(before["id"]) + 1, **request, "by": by}
            StoreDir(folder).write(WORKERS, json.dumps(record).encode())


def read_workers_request(folder: Path) -> dict[str, Any] | None:
    """Return the newest request for a number of workers: id, workers, nodes, by."""
    try:
        request: dict[str, Any] = json.loads((folder / WORKERS).read_bytes())
    except FileNotFoundError:
        return None
    return request


def begin(folder: RunFolder, workers: int | None, nodes: int) -> None:
    """Clear the outcome of earlier attempts, and request the number of workers."""
    resume_run(folder.path)
    StoreDir(folder.path).remove(OVER)
    StoreDir(folder.path).remove(SERVERS)
    (folder.path / COORDINATOR).mkdir(exist_ok=True)
    write_workers_request(folder.path, workers or folder.load().layout.world, who(), nodes=nodes)


def _receive_folder(link: Link, nodes: Nodes) -> Path:
    """Wait, without a time limit while node 0 is connected, until it has prepared the run."""
    message = None
    while message is None and not link.closed:
        message = link.answer(60.0)
    if message is None:
        raise ProcessFailed(f"node {nodes.rank} lost node 0 ({link.peer}) before the run began")
    if "failed" in message:
        raise error_of(message["failed"])
    if "elastic" not in message:
        raise BadInput("node 0 does not train with --elastic", hint="give all machines the same options")
    folder = Path(str(message["elastic"]["folder"]))
    if not (folder / RUN_FILE).exists():
        raise BadInput(
            f"node {nodes.rank}: the run's directory {folder} does not exist",
            hint="all nodes need the same --home, on a shared file system",
        )
    return folder
