"""Nodes simulated by network namespaces, each with its own address and link, which can be cut.

    namespace 0 -- veth 0 --+
    namespace 1 -- veth 1 --+-- the near bridge      (the far bridge: for nodes that are cut off together)
    ...                     |
    this machine -----------+

A cut moves the link to the other bridge: both ends stay up, and nothing arrives any more, as when a switch
between them fails. No connection is reset. Names carry the process id of their maker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection
from typing import Self

from windlass.spec.errors import ProcessFailed

PREFIX = "wlc"
DELAY_MS = 50
SLOW_RATE = "20mbit"
SLOW_LATENCY = "200ms"


class Network:
    """Namespaces on a bridge, as a context: they are removed when the block ends."""

    def __init__(self, nodes: int) -> None:
        self._id = f"{PREFIX}{os.getpid()}"
        self._subnet = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.nodes = nodes
        self.delay = ""
        """How this kernel slows a network down, "" if it cannot; known once the network is built."""

    @property
    def host(self) -> str:
        """This machine's address in the network."""
        return f"{self._subnet}.254"

    def address(self, node: int) -> str:
        return f"{self._subnet}.{node + 1}"

    def within(self, node: int) -> tuple[str, ...]:
        """Return the command prefix that runs a command on a node."""
        return ("ip", "netns", "exec", self._namespace(node))

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def cut(self, nodes: Collection[int]) -> None:
        """Cut off these nodes: they reach only each other."""
        for node in nodes:
            ip("link", "set", self._cable(node), "master", self._bridge("far"))

    def mend(self, nodes: Collection[int]) -> None:
        for node in nodes:
            ip("link", "set", self._cable(node), "master", self._bridge("near"))

    def slow_down(self, node: int) -> None:
        """Delay the traffic to and from a node."""
        self._shape(self._cable(node))
        self._shape("cable", within=node)

    def speed_up(self, node: int) -> None:
        _run("tc", "qdisc", "del", "dev", self._cable(node), "root")
        _run("tc", "-n", self._namespace(node), "qdisc", "del", "dev", "cable", "root")

    def remove(self) -> None:
        remove_network(self._id)

    def _build(self) -> None:
        for side in ("near", "far"):
            ip("link", "add", self._bridge(side), "type", "bridge")
            ip("link", "set", self._bridge(side), "up")
        ip("addr", "add", f"{self.host}/24", "dev", self._bridge("near"))
        for node in range(self.nodes):
            name, cable = self._namespace(node), self._cable(node)
            ip("netns", "add", name)
            ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
            ip("link", "set", cable, "master", self._bridge("near"), "up")
            ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        self.delay = self._known_delay()

    def _known_delay(self) -> str:
        """Find what this kernel supports: a real delay, or else a slow link on which packets queue."""
        for kind, words in _SHAPES.items():
            if not _run("tc", "qdisc", "replace", "dev", self._cable(0), "root", *words).returncode:
                _run("tc", "qdisc", "del", "dev", self._cable(0), "root")
                return kind
        return ""

    def _shape(self, device: str, within: int | None = None) -> None:
        inside = () if within is None else ("-n", self._namespace(within))
        _must("tc", *inside, "qdisc", "replace", "dev", device, "root", *_SHAPES[self.delay])

    def _namespace(self, node: int) -> str:
        return f"{self._id}-{node}"

    def _cable(self, node: int) -> str:
        return f"{self._id}c{node}"

    def _bridge(self, side: str) -> str:
        return f"{self._id}{side[0]}"


_SHAPES = {
    f"a delay of {DELAY_MS} ms each way": ("netem", "delay", f"{DELAY_MS}ms"),
    f"a line of {SLOW_RATE} that queues up to {SLOW_LATENCY}": (
        *("tbf", "rate", SLOW_RATE, "burst", "16kb", "latency", SLOW_LATENCY),
    ),
}


def why_no_network() -> str | None:
    """Return why network namespaces are not available here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need `{missing[0]}` of iproute2"
    name = f"{PREFIX}{os.getpid()}-try"
    made = _run("ip", "netns", "add", name)
    _run("ip", "netns", "del", name)
    return f"cannot create network namespaces: {made.stderr.strip()}" if made.returncode else None


def networks() -> set[str]:
    """Return the existing networks, by the prefix of the names of all their parts."""
    namespaces = _run("ip", "netns", "list").stdout.split("\n")
    links = [line.split(":")[1].strip() for line in _run("ip", "-o", "link").stdout.splitlines()]
    names = [line.split()[0] for line in namespaces if line.split()] + links
    found = (name[len(PREFIX) :] for name in names if name.startswith(PREFIX))
    owners = ("".join(_leading_digits(rest)) for rest in found)
    return {f"{PREFIX}{owner}" for owner in owners if owner}


def remove_network(name: str) -> None:
    """Remove namespaces, links and bridges of a network; the caller ends the processes inside."""
    for line in _run("ip", "netns", "list").stdout.splitlines():
        namespace = line.split()[0]
        if namespace.startswith(f"{name}-"):
            _run("ip", "netns", "del", namespace)
    for bridge in (f"{name}n", f"{name}f"):
        _run("ip", "link", "del", bridge)
    for line in _run("ip", "-o", "link").stdout.splitlines():
        link = line.split(":")[1].strip().partition("@")[0]
        if link.startswith(f"{name}c"):
            _run("ip", "link", "del", link)


def processes_in(name: str) -> list[int]:
    """Return the processes in the namespaces of a network."""
    namespaces = [line.split()[0] for line in _run("ip", "netns", "list").stdout.splitlines()]
    outputs = [_run("ip", "netns", "pids", ns).stdout for ns in namespaces if ns.startswith(f"{name}-")]
    return [int(word) for text in outputs for word in text.split()]


def ip(*words: str) -> None:
    _must("ip", *words)


def _leading_digits(text: str) -> list[str]:
    digits: list[str] = []
    for sign in text:
        if not sign.isdigit():
            break
        digits.append(sign)
    return digits


def _must(*words: str) -> None:
    done = _run(*words)
    if done.returncode:
        raise ProcessFailed(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)
