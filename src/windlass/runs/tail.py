"""Follows a journal while another process writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.spec.errors import Damaged


class Tail:
    """Reads the records since the last call; an incomplete line is left for the next call."""

    def __init__(self, path: Path, *, after: int = 0) -> None:
        """Skip the first `after` records."""
        self.path = path
        self.count = 0
        """Number of records read, skipped ones included."""
        self._after, self._at = after, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new records, oldest first."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = [self._record(line) for line in whole.splitlines() if line.strip()]
        begin = max(0, self._after - self.count)
        self.count += len(found)
        return found[begin:]

    def _record(self, line: bytes) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            raise Damaged(f"{self.path}: a line before byte {self._at} is not JSON") from None
        return record
