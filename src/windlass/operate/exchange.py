"""Brings models and adapters in from Hugging Face directories, and models out to them, in a process apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cluster.on_local import LocalProcess


def convert(source: Path, target: Path, logs: Path, *, dequantise: bool = False) -> dict[str, Any]:
    """Load `source`, check every tensor against its shape, and write `target` with a manifest."""
    args = ["convert", str(source), str(target), *(["--dequantise"] if dequantise else [])]
    with LocalProcess("conversion", "windlass.models", args, logs / "convert.log") as process:
        return process.result()


def take_adapter(source: Path, base: Path, name: str, target: Path, logs: Path) -> dict[str, Any]:
    """Check an adapter against the model `name` in `base`, and write `target` with a manifest."""
    args = [str(source), str(base), str(target), f"--of={name}"]
    log = logs / "convert.log"
    with LocalProcess("conversion", "windlass.serve.engine.adapters", args, log) as process:
        return process.result()
