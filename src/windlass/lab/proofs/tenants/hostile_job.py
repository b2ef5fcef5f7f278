"""A hostile process of a tenant: `python -m windlass.lab.proofs.tenants.hostile_job ATTACK ARGUMENT...`.

forks N            starts up to N processes, each in its own session, until refused
eat MIB            allocates this much memory
fill MIB           writes this much into its home and the common directories
chatter MIB        prints this much
peek PATH...       tries to list, read and write foreign files, and to inspect and kill other processes
work TIME          computes for this long ("300m" is a third of a second), and reports how long that took

The result is in ATTACK.json in its home. N is at most MAX_FORKS.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.protocol.entrypoint import emit, run_entrypoint

MAX_FORKS = 200
LIFE_S = 15.0
"""Seconds after which leftover processes end by themselves."""
CANARY = "WINDLASS_CANARY"
"""A variable that no tenant's process may find anywhere."""
ERRNO_WORDS = {1: "forbidden", 2: "absent", 3: "absent", 13: "forbidden"}


def main(argv: list[str]) -> int:
    attack, rest = argv[0], argv[1:]
    emit({"event": "began", "attack": attack})
    result = ATTACKS[attack](rest)
    home = Path(os.environ["WINDLASS_HOME"])
    part = home / f".{attack}.part"
    with contextlib.suppress(OSError):  # its disk may be full: that was its goal
        part.write_text(json.dumps(result))
        part.replace(home / f"{attack}.json")
    emit({"event": "done", "attack": attack, **result})
    return 0


def fork(rest: list[str]) -> dict[str, Any]:
    """Fork until `limit` is reached or time is up; every child leaves its session, and ends by itself."""
    limit, made, refused = min(int(rest[0]), MAX_FORKS), 0, 0
    end_s = time.monotonic() + 3.0
    while made < limit and time.monotonic() < end_s:
        try:
            pid = os.fork()
        except OSError:
            refused += 1
            time.sleep(0.01)
            continue
        if pid == 0:
            os.setsid()
            signal.alarm(int(LIFE_S))
            time.sleep(LIFE_S)
            os._exit(0)
        made += 1
    return {"requested": limit, "made": made, "refused": refused}


def eat(rest: list[str]) -> dict[str, Any]:
    taken, requested = [], int(rest[0])
    for _ in range(requested // 8):
        block = bytearray(8 << 20)
        block[::4096] = b"x" * len(block[::4096])
        taken.append(block)
    time.sleep(1.0)
    return {"requested_mib": requested, "taken_mib": 8 * len(taken)}


def fill(rest: list[str]) -> dict[str, Any]:
    """Write until refused or killed; half of it into world-writable directories."""
    requested, written, block = int(rest[0]), 0, os.urandom(1 << 20)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    places = [Path(os.environ["WINDLASS_HOME"]), Path("/var/tmp")]
    name = f"windlass-guest-{os.getpid()}"
    with contextlib.suppress(OSError):
        for number in range(requested):
            with (places[number % 2] / f"{name}-{number}").open("wb") as file:
                file.write(block)
            written += 1
            time.sleep(0.002)
    time.sleep(5.0)  # wait to be detected
    return {"requested_mib": requested, "written_mib": written}


def chatter(rest: list[str]) -> dict[str, Any]:
    line = "x" * 1023 + "\n"
    for number in range(int(rest[0])):
        for _ in range(1024):
            sys.stderr.write(line)
        if number % 4 == 0:
            time.sleep(0.02)
    return {"asked_mib": int(rest[0])}


def peek(rest: list[str]) -> dict[str, Any]:
    """Try every kind of access; return the outcome of each, and the foreign data that was seen."""
    found: dict[str, str] = {}
    for name in rest:
        path = Path(name)
        found[f"list {name}"] = _tried(lambda path=path: os.listdir(path))  # type: ignore[misc]
        found[f"read {name}"] = _tried(lambda path=path: path.read_bytes())  # type: ignore[misc]
        found[f"write {name}"] = _tried(lambda path=path: (path / "left").write_text("x"))  # type: ignore[misc]
    mine = os.getuid()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == mine:
                continue
            said = _tried(lambda entry=entry: (entry / "environ").read_bytes())  # type: ignore[misc]
            if said == "open":
                found[f"environment of {entry.name}"] = said
            said = _tried(lambda entry=entry: os.kill(int(entry.name), 0))  # type: ignore[misc]
            if said == "open":
                found[f"signal to {entry.name}"] = said
    found["its own environment"] = "open" if CANARY in os.environ else "absent"
    return {"found": found, "seen": sorted(what for what, said in found.items() if said == "open")}


def _tried(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return ERRNO_WORDS.get(error.errno or 0, "refused")
    return "open"


def work(rest: list[str]) -> dict[str, Any]:
    """Compute a fixed amount of work, and report how long that took."""
    began_s, text = time.monotonic(), rest[0]
    amount = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    while time.thread_time() < amount:
        sum(range(10_000))
    return {"took_s": time.monotonic() - began_s}


ATTACKS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "forks": fork, "eat": eat, "fill": fill, "chatter": chatter, "peek": peek, "work": work,
}  # fmt: skip

if __name__ == "__main__":
    run_entrypoint(main)
