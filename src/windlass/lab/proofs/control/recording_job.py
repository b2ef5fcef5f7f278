"""A job that records what it does: `python -m windlass.lab.proofs.control.recording_job FOLDER SECONDS`.

    FOLDER/events  one line per event: began, ended, again, twice, overlap
    FOLDER/over    made once, at the end of the work

Like any job of a control plane it may be launched again at any time; after its end it does nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from windlass.spec.protocol.entrypoint import EntrypointParser, run_entrypoint

EVENTS, OVER, LOCK = "events", "over", "lock"


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.proofs.control.recording_job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    args = parser.parse_args(argv)
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _record(folder, "overlap")
            return 1
        if (folder / OVER).exists():
            _record(folder, "again")
            return 0
        _record(folder, "began")
        time.sleep(args.seconds)
        try:
            os.close(os.open(folder / OVER, os.O_CREAT | os.O_EXCL))
            _record(folder, "ended")
        except FileExistsError:
            _record(folder, "twice")
    return 0


def _record(folder: Path, what: str) -> None:
    """Append a line in one atomic write."""
    file = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{what} {os.getpid()} {time.time():.3f}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    run_entrypoint(main)
