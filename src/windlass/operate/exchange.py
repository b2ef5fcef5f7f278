"""Brings models in from Hugging Face directories and out to them, in a process that knows torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cluster.on_local import LocalProcess


def convert(source: Path, target: Path, logs: Path) -> dict[str, Any]:
    """Load `source`, check every tensor against its shape, and write `target` with a manifest."""
    args = ["convert", str(source), str(target)]
    with LocalProcess("conversion", "windlass.models", args, logs / "convert.log") as process:
        return process.result()
