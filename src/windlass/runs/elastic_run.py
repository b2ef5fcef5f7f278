"""Elastic runs: begun, joined by further machines, asked for another number of workers.

Node 0 prepares the run and tells the other machines where it is; from then on all are alike, and each goes
on without any other (elastic.agent, elastic.coordinator).
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
    folder: RunFolder, tell: Tell, *, workers: int | None = None, company: NodeGroup | None = None
) -> bool:
    """Do the run with `workers` that may come and go. Return False when it was stopped.

    A run that goes on elsewhere, because this machine fell out of it, is joined as it is.
    """
    company = company or NodeGroup()
    with locked(folder.path / ".lock", f"run {folder.name}"):
        host = address_towards_leader(folder)
        if host is None:
            begin(folder, workers, nodes=1 + len(company.links))
        for link in company.links:
            link.send(elastic={"folder": str(folder.path)})
        return Agent(AgentSite(folder.path, "node0", host or company.host), tell).run()


def attend_elastic(nodes: Nodes, tell: Tell, going: RunFolder | None = None) -> bool:
    """Take part from another machine: in a run that is going on, or where node 0 says.

    Return False when the run was stopped.
    """
    host = address_towards_leader(going) if going is not None else None
    if going is not None and host is not None:
        return Agent(AgentSite(going.path, f"node{nodes.rank}", host), tell).run()
    link = join_rendezvous(nodes)
    try:
        folder, host = _told_folder(link, nodes), link.own
    finally:
        link.close()
    return Agent(AgentSite(folder, f"node{nodes.rank}", host), tell).run()


def address_towards_leader(folder: RunFolder) -> str | None:
    """Return the address of this machine as whoever leads the run sees it; None when nobody answers."""
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


def want(folder: Path, workers: int, by: str, *, nodes: int | None = None) -> None:
    """Leave word of how many workers the run shall have; its coordinator looks at it all the time.

    They are spread over `nodes` machines, which stay as many as before when nothing is said of them.
    """
    with locked(folder / ".workers.lock", f"the number of workers of run {folder.parent.name}/{folder.name}"):
        before = wanted(folder) or {"id": 0, "workers": 0, "nodes": 1}
        asked = {"workers": workers, "nodes": nodes or before["nodes"]}
        if asked != {key: before[key] for key in asked}:
            record = {"id": int(before["id"]) + 1, **asked, "by": by}
            StoreDir(folder).write(WORKERS, json.dumps(record).encode())


def wanted(folder: Path) -> dict[str, Any] | None:
    """Return the newest request for a number of workers: id, workers, nodes, by."""
    try:
        asked: dict[str, Any] = json.loads((folder / WORKERS).read_bytes())
    except FileNotFoundError:
        return None
    return asked


def begin(folder: RunFolder, workers: int | None, nodes: int) -> None:
    """Take back every end that the run had, and leave word of what it shall have."""
    resume_run(folder.path)
    StoreDir(folder.path).remove(OVER)
    StoreDir(folder.path).remove(SERVERS)
    (folder.path / COORDINATOR).mkdir(exist_ok=True)
    want(folder.path, workers or folder.load().layout.world, who(), nodes=nodes)


def _told_folder(link: Link, nodes: Nodes) -> Path:
    """Wait until node 0 has prepared the run, however long that takes while it is there."""
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
            f"node {nodes.rank}: the run's directory {folder} is not here",
            hint="all nodes need the same --home, on a directory that they share",
        )
    return folder
