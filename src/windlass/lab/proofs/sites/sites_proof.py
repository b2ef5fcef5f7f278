"""Proves that clients reach another site when theirs is cut off: two sites, a resolver and clients, each on
its own node, simulated by network namespaces.

    east and west: windlass serve    home: Unbound and two clients    this machine: windlass sites

East is nearest to all clients. Its link is cut, and the time that each client gets no answer is measured.
Then it is reconnected, and the time until the name resolves to it again is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from windlass.lab.chaos.network import Network, why_no_network
from windlass.lab.proofs.failover.requests import MODEL, write_model
from windlass.spec.errors import AskedWrongly, ProcessFailed
from windlass.spec.processes import CLI, DNS_PROBE, SDK_PROBE

EAST, WEST, HOME = range(3)
ZONE = "llm.example.org"
DNS_PORT, PORT = 5353, 8000
START_S = 90.0
TTL_S = 5
LONGEST_S = 60.0
SETTLE_S = 5.0
"""Seconds until a started site counts as healthy."""

UNBOUND = """\
server:
  interface: 127.0.0.1
  port: 53
  do-daemonize: no
  use-syslog: no
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: ""
  do-not-query-localhost: no
  cache-min-ttl: 0
  val-permissive-mode: yes
  module-config: "iterator"
  access-control: 127.0.0.0/8 allow
stub-zone:
  name: "{zone}"
  stub-addr: {server}@{port}
"""


def prove_sites(say: Callable[[str], None], *, ttl_s: int = TTL_S) -> dict[str, Any]:
    """Cut a site off and reconnect it; `figures` has the seconds."""
    reason = why_no_network() or (None if shutil.which("unbound") else "it needs a resolver: install unbound")
    if reason is not None:
        raise AskedWrongly(f"prove sites: {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="windlass-sites-") as made,
        Network(3) as network,
        contextlib.ExitStack() as stack,
    ):
        return _proved(Path(made), network, ttl_s, say, stack)


def _proved(
    folder: Path, network: Network, ttl_s: int, say: Callable[[str], None], stack: contextlib.ExitStack
) -> dict[str, Any]:
    model, key = write_model(folder), _key(folder / "east")
    shutil.copytree(folder / "east", folder / "west")
    for node, name in ((EAST, "east"), (WEST, "west")):
        words = ["serve", str(model), "--host", network.address(node), "--port", str(PORT), "--threads", "1"]
        stack.enter_context(_windlass(network.within(node), [*words, "--home", str(folder / name)], key))
    file = folder / "sites.toml"
    file.write_text(_zone(network, ttl_s))
    words = ["sites", "serve", str(file), "--host", network.host, "--port", str(DNS_PORT)]
    watching = stack.enter_context(_windlass((), [*words, "--home", str(folder)], key))
    settings = folder / "unbound.conf"
    settings.write_text(UNBOUND.format(folder=folder, zone=ZONE, server=network.host, port=DNS_PORT))
    stack.enter_context(_running([*network.within(HOME), "unbound", "-c", str(settings)], dict(os.environ)))
    urls = [f"http://{network.address(node)}:{PORT}" for node in (EAST, WEST)]
    for url in urls:
        _until_ready(url)
    time.sleep(SETTLE_S)
    visits = [
        stack.enter_context(_visitor(network, key, DNS_PROBE, "127.0.0.1", ZONE, str(PORT), MODEL)),
        stack.enter_context(_visitor(network, key, SDK_PROBE, ",".join(urls), MODEL)),
    ]
    return _measured(network, visits, watching, ttl_s, say)


def _measured(
    network: Network,
    visits: list[OutputReader],
    watching: OutputReader,
    ttl_s: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    by_name, by_sdk = visits
    east, west = network.address(EAST), network.address(WEST)
    by_name.wait(lambda one: one.get("site") == east, START_S)
    by_sdk.wait(lambda one: bool(one.get("answered")), START_S)
    time.sleep(ttl_s)  # so that cached answers have any age
    say("both sites answer; the nearer one is cut off")
    network.cut([EAST])
    cut = time.time()
    noticed = watching.wait(
        lambda one: one.get("site") == "east" and one.get("state") == "out", LONGEST_S, cut
    )
    name_s = by_name.wait(lambda one: one.get("site") == west, LONGEST_S, cut) - cut
    by_sdk.wait(lambda one: bool(one.get("answered")), LONGEST_S, cut + SETTLE_S)
    sdk_s = _longest_gap(by_sdk, cut)
    say("it is connected again")
    mended = time.time()
    network.mend([EAST])
    back_s = by_name.wait(lambda one: one.get("site") == east, LONGEST_S, mended) - mended
    figures = {
        "resolver_failover_s": round(name_s, 2),
        "sdk_failover_s": round(sdk_s, 2),
        "noticed_s": round(noticed - cut, 2),
        "back_s": round(back_s, 2),
        "sdk_unanswered": sum(not one["answered"] for one in by_sdk.lines if one["time"] >= cut),
    }
    return {"figures": figures}


def _longest_gap(output: OutputReader, cut: float) -> float:
    """Return the longest time without an answer, from the last one before the cut."""
    times = [one["time"] for one in output.lines if one.get("answered")]
    since = [at for at in times if at < cut][-1:] + [at for at in times if at >= cut]
    return max((later - earlier for earlier, later in itertools.pairwise(since)), default=0.0)


def _until_ready(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/readyz", timeout=2).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise ProcessFailed(f"prove sites: {url} is not ready after {START_S:g} s")


def _zone(network: Network, ttl_s: int) -> str:
    sites = "".join(
        f'[[site]]\nname = "{name}"\naddresses = ["{network.address(node)}"]\n'
        f'url = "http://{network.address(node)}:{PORT}"\ndistance = {distance}\n'
        for name, node, distance in (("east", EAST, 1), ("west", WEST, 100))
    )
    watch = f'[watch]\nmodel = "{MODEL}"\nevery = "500ms"\nwithin = "1500ms"\n'
    return f'zone = "{ZONE}"\nttl = {ttl_s}\n{watch}{sites}'


def _key(home: Path) -> str:
    """Make a key that both sites accept."""
    command = [sys.executable, "-m", CLI, "keys", "make", "proof", "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessFailed(f"no key could be made: {done.stderr.strip()}")
    return str(json.loads(done.stdout)["key"])


class OutputReader:
    """The output of a process, line by line, with the time at which each line was read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._process = process
        self._new = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, wanted: Callable[[dict[str, Any]], bool], within_s: float, since: float = 0.0) -> float:
        """Return when a matching line was read, at or after a time."""
        deadline = time.monotonic() + within_s
        with self._new:
            while True:
                found = (one["time"] for one in self.lines if one["time"] >= since and wanted(one))
                if (at := next(found, None)) is not None:
                    return float(at)
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._process.poll() is not None:
                    raise ProcessFailed("prove sites: timeout while waiting for the output of a process")
                self._new.wait(min(left_s, 1.0))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and line.rstrip().endswith("}"):
                with self._new:
                    self.lines.append({"time": time.time(), **json.loads(line)})
                    self._new.notify_all()


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[OutputReader]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        yield OutputReader(process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _windlass(
    within: tuple[str, ...], words: list[str], key: str
) -> contextlib.AbstractContextManager[OutputReader]:
    command = [*within, sys.executable, "-m", CLI, *words, "--json"]
    return _running(command, {**os.environ, "WINDLASS_KEY": key})


def _visitor(
    network: Network, key: str, module: str, *words: str
) -> contextlib.AbstractContextManager[OutputReader]:
    command = [*network.within(HOME), sys.executable, "-m", module, *words]
    return _running(command, {**os.environ, "WINDLASS_KEY": key})
