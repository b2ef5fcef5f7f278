"""Finds the hidden states of a text's tokens, in a separate process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.processes import TRAIN


def tag(model: Path, text: str | None, home: Path, *, listed: int) -> dict[str, Any]:
    """Return the state of each token, and the `listed` most likely tokens of those states; without a text, of
    all states."""
    done: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-tag-") as scratch:
        arguments = ["tag", str(model), "--listed", str(listed)]
        if text is not None:
            file = Path(scratch) / "text"  # an argument would limit its length
            file.write_text(text, encoding="utf-8")
            arguments += ["--text", str(file)]
        with LocalProcess("tagging", TRAIN, arguments, home / "logs" / "tag.log") as process:
            for event in process.events():
                done = event.get("done", done)
            process.check()
    return done
