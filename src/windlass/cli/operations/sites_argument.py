"""What verbs on sites have in common: the file, the folder, the name of a site."""

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
    """Give an event that is set when somebody stops this process; `at_once` ends the block there, too."""
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
    """Return how the sites stand by the DNS server of this home, which must be running."""
    file = folder / "standing.json"
    told = dict(json.loads(file.read_bytes())) if file.exists() else {"time": 0.0}
    if time.time() - told["time"] > STALE_S:
        raise NotFound(
            f"nobody answers for {sites.zone} from here", hint="`windlass sites serve SITES.toml` does"
        )
    return told
