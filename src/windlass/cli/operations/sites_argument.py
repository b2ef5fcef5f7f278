"""The arguments of the sites verbs: the file, the state directory, the name of a site."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from windlass.cli.home import home_of
from windlass.spec.errors import AskedWrongly, NotFound, did_you_mean
from windlass.spec.sites import Sites

STALE_S = 5.0


def check_site(name: str, sites: Sites) -> None:
    known = [site.name for site in sites.site]
    if name not in known:
        raise AskedWrongly(f"{sites.zone} has no site '{name}'", hint=did_you_mean(name, known))


def folder_of(args: argparse.Namespace, sites: Sites) -> Path:
    return home_of(args) / "sites" / sites.zone.rstrip(".")


@contextmanager
def until_stopped(*, at_once: bool = False) -> Iterator[threading.Event]:
    """Yield an event that is set when a signal stops this process; `at_once` also ends the block there."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        if at_once:
            raise KeyboardInterrupt

    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with suppress(KeyboardInterrupt):
            yield stopped
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def standing_of(folder: Path, sites: Sites) -> dict[str, Any]:
    """Return the health of the sites as recorded by the DNS server of this home, which must be running."""
    file = folder / "standing.json"
    record = dict(json.loads(file.read_bytes())) if file.exists() else {"time": 0.0}
    if time.time() - record["time"] > STALE_S:
        raise NotFound(
            f"no DNS server for {sites.zone} runs here",
            hint="start it with `windlass sites serve SITES.toml`",
        )
    return record
