"""One log of a run from the logs of its ranks.

    logs/rank-0.log, logs/rank-1.log ...   written by the ranks themselves
    process.log                            their lines in the order they came, each with its rank

The launcher gathers; if it dies, the ranks' own files still have every line.
"""

from __future__ import annotations

from pathlib import Path

from windlass.cluster.launch.local_ranks import log_of

NAME = "process.log"


class RankLog:
    """Follows the ranks' files from where they end now."""

    def __init__(self, folder: Path, world: int) -> None:
        self.path = folder / NAME
        self._files = [log_of(folder, rank) for rank in range(world)]
        self._read = [file.stat().st_size if file.exists() else 0 for file in self._files]
        self.path.touch()

    def gather(self, *, last: bool = False) -> None:
        """Take over the lines that came; with `last`, also one that has no end."""
        told = b"".join(self._lines(rank, last) for rank in range(len(self._files)))
        if told:
            with self.path.open("ab") as file:
                file.write(told)

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
    """torch marks some lines of a traceback itself; one mark is enough."""
    plain = line.removeprefix(b"[rank%d]: " % rank)
    return b"[rank %d] %s\n" % (rank, plain)
