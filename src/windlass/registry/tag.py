"""Lets a process of its own say which hidden states are behind a text."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.processes import TRAIN


def tag(model: Path, text: str | None, home: Path, *, listed: int) -> dict[str, Any]:
    """Return the state of each token, and the `listed` likeliest tokens of those states; without a text, of
    all states."""
    done: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-tag-") as scratch:
        arguments = ["tag", str(model), "--listed", str(listed)]
        if text is not None:
            file = Path(scratch) / "text"  # of any length, which an argument is not
            file.write_text(text, encoding="utf-8")
            arguments += ["--text", str(file)]
        with LocalProcess("tagging", TRAIN, arguments, home / "logs" / "tag.log") as process:
            for event in process.events():
                done = event.get("done", done)
            process.check()
    return done
