"""Clocks of machines that can be set, for the processes of a run only.

libfaketime, loaded into every process of a machine, adds what a file says to the time of day. Time that only
ever goes on (CLOCK_MONOTONIC) is left alone, as it is when somebody sets the clock of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LIBRARIES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
LOOK_EVERY_S = 1


def find_library() -> Path | None:
    """Return the library that fakes the time, where one is installed."""
    return next((path for pattern in LIBRARIES for path in sorted(Path("/").glob(pattern[1:]))), None)


class Clocks:
    """One clock for each machine."""

    def __init__(self, folder: Path, nodes: Sequence[str], library: Path) -> None:
        self._folder = folder
        self._library = library
        folder.mkdir(parents=True, exist_ok=True)
        for node in nodes:
            self.put(node, 0)

    def put(self, node: str, ahead_s: int) -> None:
        """Set a machine's clock so many seconds ahead of the true time; the old file is never seen half."""
        part = self._file(node).with_suffix(".part")
        part.write_text(f"{ahead_s:+d}\n")
        part.replace(self._file(node))

    def environment(self, node: str) -> dict[str, str]:
        """Return what a process of the machine needs to go by its clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file(node)),
            "FAKETIME_CACHE_DURATION": str(LOOK_EVERY_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "NO_FAKE_STAT": "1",
        }

    def _file(self, node: str) -> Path:
        return self._folder / f"clock-{node}"
