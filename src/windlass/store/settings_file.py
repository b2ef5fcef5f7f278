"""The file by which a run is asked to change (docs/formats/settings.md): read, numbered, written whole.

What may be asked is decided in runs/run_settings.py; here is only how it is kept.
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
    """Name whoever runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def newest(folder: Path) -> Settings | None:
    """Return the newest request to the run in `folder`, taken or not."""
    try:
        return Settings.model_validate_json((folder / SETTINGS).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"])
        raise Damaged(
            f"{folder / SETTINGS}: is not a request: {reason}", hint="remove it; the run goes on without"
        ) from None


@contextmanager
def asking(folder: Path) -> Iterator[None]:
    """Be the only one who asks this run for something, so that no request is lost."""
    with locked(folder / ".settings.lock", f"the settings of run {folder.parent.name}/{folder.name}"):
        yield


def drafted(
    folder: Path, values: dict[str, Any], *, by: str, undoes: int | None = None, taken: int = 0
) -> Settings:
    """Make the next request out of plain values, or say what is wrong with them.

    `taken` is the newest one that the journal knows: the file may have been removed since.
    """
    before = newest(folder)
    number = max(taken, 0 if before is None else before.id) + 1
    data = {**values, "id": number, "by": by, "time": round(time.time(), 3), "undoes": undoes}
    return parse(Settings, data, f"run {folder.parent.name}/{folder.name}")


def write(folder: Path, settings: Settings) -> None:
    StoreDir(folder).write(SETTINGS, settings.model_dump_json(indent=1).encode())


def resume_run(folder: Path) -> None:
    """Take back that the run shall stop: whoever starts it again wants it to run."""
    with asking(folder):
        before = newest(folder)
        if before is not None and before.stop:
            write(folder, drafted(folder, {**before.values, "stop": False}, by=who()))


def forget_sync(folder: Path) -> None:
    """Let the job file decide again how replicas exchange: what it says is newer than what was asked for."""
    with asking(folder):
        before = newest(folder)
        if before is not None and before.sync is not None:
            write(folder, drafted(folder, {**before.values, "sync": None}, by=who()))
