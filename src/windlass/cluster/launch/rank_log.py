"""Merges the logs of the ranks into one log of the run.

    logs/rank-0.log, logs/rank-1.log ...   written by the ranks themselves
    process.log                            their lines in order of arrival, each with its rank

The launcher merges; if it dies, the ranks' own files still have every line.
"""

from __future__ import annotations

from pathlib import Path

from windlass.cluster.launch.local_ranks import log_of

NAME = "process.log"


class RankLog:
    """Follows the ranks' files from their current end."""

    def __init__(self, folder: Path, world: int) -> None:
        self.path = folder / NAME
        self._files = [log_of(folder, rank) for rank in range(world)]
        self._read = [file.stat().st_size if file.exists() else 0 for file in self._files]
        self.path.touch()

    def gather(self, *, last: bool = False) -> None:
        """Append the new lines; with `last`, also an unfinished one."""
        lines = b"".join(self._lines(rank, last) for rank in range(len(self._files)))
        if lines:
            with self.path.open("ab") as file:
                file.write(lines)

    def _lines(self, rank: int, last: bool) -> bytes:
        file, start = self._files[rank], self._read[rank]
        if not file.exists() or file.stat().st_size <= start:
            return b""
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read()
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        return b"".join(_marked(rank, line) for line in whole.splitlines())


def _marked(rank: int, line: bytes) -> bytes:
    """Prefix a line with its rank; torch already prefixes some lines of a traceback."""
    plain = line.removeprefix(b"[rank%d]: " % rank)
    return b"[rank %d] %s\n" % (rank, plain)
