"""Reads and writes the file of requests to a run (docs/formats/settings.md).

runs/run_settings.py decides which requests are valid; this module numbers and stores them.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from windlass.spec.errors import Damaged
from windlass.spec.read import parse
from windlass.spec.settings import SETTINGS, Settings
from windlass.store.lock import locked
from windlass.store.store_dir import StoreDir


def who() -> str:
    """Return the user who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def newest(folder: Path) -> Settings | None:
    """Return the newest request to the run in `folder`, applied or not."""
    try:
        return Settings.model_validate_json((folder / SETTINGS).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise Damaged(
            f"{folder / SETTINGS}: is not a request: {reason}", hint="remove it; the run continues without it"
        ) from None


@contextmanager
def request_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on the run's requests, so that none is lost between reading and writing."""
    with locked(folder / ".settings.lock", f"the settings of run {folder.parent.name}/{folder.name}"):
        yield


def drafted(
    folder: Path, values: dict[str, Any], *, by: str, undoes: int | None = None, taken: int = 0
) -> Settings:
    """Build the next request from plain values; raise BadJob if they are invalid.

    `taken` is the newest request in the journal: the file may have been removed since.
    """
    before = newest(folder)
    number = max(taken, 0 if before is None else before.id) + 1
    data = {**values, "id": number, "by": by, "time": round(time.time(), 3), "undoes": undoes}
    return parse(Settings, data, f"run {folder.parent.name}/{folder.name}")


def write(folder: Path, settings: Settings) -> None:
    StoreDir(folder).write(SETTINGS, settings.model_dump_json(indent=1).encode())


def resume_run(folder: Path) -> None:
    """Undo a request to stop, before the run is started again."""
    with request_lock(folder):
        before = newest(folder)
        if before is not None and before.stop:
            write(folder, drafted(folder, {**before.values, "stop": False}, by=who()))


def forget_sync(folder: Path) -> None:
    """Drop a requested [sync], so that the newer job file decides how replicas synchronise."""
    with request_lock(folder):
        before = newest(folder)
        if before is not None and before.sync is not None:
            write(folder, drafted(folder, {**before.values, "sync": None}, by=who()))
