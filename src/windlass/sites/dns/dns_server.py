"""The DNS server of a zone: UDP and TCP, and one probing task per site.

Its folder is its interface to the command line and other processes:

    standing.json   the state of every site, written at every change and every half second
    drain/NAME      created by `windlass sites drain`, removed by `restore`; read every half second
    known.json      the expected answer of each version
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx

from windlass.sites.dns.dns_message import Zone, answer
from windlass.sites.dns.site_health import SiteHealth, after, answering, drained, state
from windlass.sites.dns.site_probe import ask, key_of
from windlass.spec.errors import InUse
from windlass.spec.sites import Network, Site, Sites
from windlass.store.store_dir import StoreDir

STANDING, KNOWN, DRAIN = "standing.json", "known.json", "drain"
LOOK_EVERY_S = 0.5
TCP_IDLE_S = 5.0
MAX_TCP = 256

Tell = Callable[[dict[str, Any]], None]


class SitesServer:
    """Answers queries for a zone until it is cancelled."""

    def __init__(self, sites: Sites, folder: Path, tell: Tell) -> None:
        self._sites, self._zone, self._folder = sites, Zone.of(sites), folder
        self._tell = tell
        self.known: dict[str, SiteHealth] = {site.name: SiteHealth() for site in sites.site}
        self._states: dict[str, str] = {}
        self._answers: dict[str, str] = _load(folder / KNOWN)
        self._connections = 0
        self.queries = 0

    async def run(self, host: str, port: int, ready: Callable[[int], None]) -> None:
        """Serve; `ready` is called with the port."""
        loop = asyncio.get_running_loop()
        tcp = await _opened(asyncio.start_server(self._serve_connection, host, port), host, port)
        chosen = tcp.sockets[0].getsockname()[1]
        udp, _ = await _opened(
            loop.create_datagram_endpoint(lambda: _Datagrams(self.reply), (host, chosen)), host, chosen
        )
        self._update()
        ready(chosen)
        try:
            async with httpx.AsyncClient() as client, asyncio.TaskGroup() as tasks:
                for site in self._sites.site:
                    tasks.create_task(self._watch(client, site))
                tasks.create_task(self._keep_updating())
        finally:
            udp.close()
            tcp.close()

    def reply(self, data: bytes, sender: str, *, tcp: bool = False) -> bytes | None:
        """Return the answer to one message."""
        self.queries += 1
        client: Network = ipaddress.ip_network(sender.partition("%")[0])
        well = answering(self._sites, self.known, time.time())
        return answer(data, self._zone, well, client, int(time.time()), tcp=tcp)

    async def _watch(self, client: httpx.AsyncClient, site: Site) -> None:
        while True:
            before = len(self._answers)
            probe = await ask(client, site, self._sites.watch, key_of(site), self._answers)
            self.known[site.name] = after(self.known[site.name], probe, self._sites.watch, time.time())
            if len(self._answers) > before:
                StoreDir(self._folder).write(KNOWN, json.dumps(self._answers).encode())
            self._update()
            await asyncio.sleep(self._sites.watch.every)

    async def _keep_updating(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._update()

    def _update(self) -> None:
        """Apply drain requests, report changes, and write standing.json."""
        now = time.time()
        for name, standing in self.known.items():
            draining = (self._folder / DRAIN / name).exists()
            self.known[name] = drained(standing, now if draining else None)
        states = {name: state(standing, self._sites, now) for name, standing in self.known.items()}
        for name, found in states.items():
            if found != self._states.get(name):
                self._tell({"event": "site", "site": name, "state": found, "why": self.known[name].why})
        self._states = dict(states)
        StoreDir(self._folder).write(STANDING, json.dumps(self._report(now)).encode())

    def _report(self, now: float) -> dict[str, Any]:
        rows = [
            {
                "site": name,
                "state": state(one, self._sites, now),
                "took_ms": round(one.took_s * 1000, 1),
                "since_s": round(now - one.changed_at, 1) if one.changed_at else None,
                "why": one.why,
            }
            for name, one in self.known.items()
        ]
        return {"zone": self._sites.zone, "time": round(now, 3), "queries": self.queries, "sites": rows}

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the messages of one TCP connection; slow or surplus connections are closed."""
        self._connections += 1
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                while self._connections <= MAX_TCP:
                    length = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), TCP_IDLE_S))
                    data = await asyncio.wait_for(reader.readexactly(length), TCP_IDLE_S)
                    reply = self.reply(data, writer.get_extra_info("peername")[0], tcp=True)
                    if reply is None:
                        break
                    writer.write(len(reply).to_bytes(2) + reply)
                    await writer.drain()
        finally:
            self._connections -= 1
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    """The UDP side: one message in, one out."""

    def __init__(self, reply: Callable[[bytes, str], bytes | None]) -> None:
        self._reply = reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._reply(data, addr[0])
        if reply is not None:
            self._transport.sendto(reply, addr)


async def _opened(opening: Any, host: str, port: int) -> Any:
    try:
        return await opening
    except OSError as error:
        raise InUse(f"{host}:{port}: cannot listen there: {error.strerror or error}") from None


def _load(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_bytes())) if path.exists() else {}
