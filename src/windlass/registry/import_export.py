"""Imports models and adapters from other formats, and exports models, in a separate process.

Neural networks are Hugging Face directories or GGUF files; n-gram models are ARPA files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.errors import BadInput
from windlass.spec.processes import ADAPTERS, CONVERT, CONVERT_GGUF, CONVERT_NGRAM


def convert(source: Path, target: Path, logs: Path, *, dequantise: bool = False) -> dict[str, Any]:
    """Load `source`, check every tensor against its shape, and write `target` with a manifest."""
    args = ["convert", str(source), str(target), *(["--dequantise"] if dequantise else [])]
    with LocalProcess("conversion", CONVERT, args, logs / "convert.log") as process:
        return process.result()


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that a path names: itself, or the only one in a directory without config.json."""
    if path.name.endswith(".gguf"):
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    first = [file for file in found if "-00001-of-" in file.name] or found
    if len(first) > 1:
        names = ", ".join(file.name for file in first[:5])
        raise BadInput(f"{path}: holds {len(first)} GGUF files: {names}", hint="name one of them")
    return first[0] if first else None


def take_gguf(source: Path, target: Path, logs: Path, *, dtype: str = "auto") -> dict[str, Any]:
    """Read a GGUF file and write `target`, a Hugging Face directory with a manifest."""
    args = ["import", str(source), str(target), f"--dtype={dtype}"]
    with LocalProcess("conversion", CONVERT_GGUF, args, logs / "convert.log") as process:
        return process.result()


def give_gguf(source: Path, target: Path, logs: Path, kind: str, pre: str | None = None) -> dict[str, Any]:
    """Write the model in `source` as a GGUF file, which appears whole or not at all."""
    args = ["export", str(source), str(target), f"--type={kind}", *([f"--pre={pre}"] if pre else [])]
    with LocalProcess("conversion", CONVERT_GGUF, args, logs / "convert.log") as process:
        return process.result()


def is_arpa(path: Path) -> bool:
    """Whether a path is named as an ARPA file; it need not exist."""
    return path.name.endswith((".arpa", ".arpa.gz"))


def take_arpa(source: Path, target: Path, logs: Path) -> dict[str, Any]:
    """Read an ARPA file and write `target`, a model directory with a manifest."""
    return _ngram("import", source, target, logs)


def give_arpa(source: Path, target: Path, logs: Path) -> dict[str, Any]:
    """Write the n-gram model in `source` as an ARPA file."""
    return _ngram("export", source, target, logs)


def _ngram(verb: str, source: Path, target: Path, logs: Path) -> dict[str, Any]:
    args = [verb, str(source), str(target)]
    with LocalProcess("conversion", CONVERT_NGRAM, args, logs / "convert.log") as process:
        return process.result()


def take_adapter(source: Path, base: Path, name: str, target: Path, logs: Path) -> dict[str, Any]:
    """Check an adapter against the model `name` in `base`, and write `target` with a manifest."""
    args = [str(source), str(base), str(target), f"--of={name}"]
    log = logs / "convert.log"
    with LocalProcess("conversion", ADAPTERS, args, log) as process:
        return process.result()
