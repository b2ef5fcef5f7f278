"""Native libraries of ours, loaded by ctypes.

setup.py builds each library in the package that uses it. If it is missing (no compiler at installation), was
built from other sources, or does not run on this processor, the loader returns None and numpy computes
instead.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Signatures = Mapping[str, tuple[Any, list[Any]]]

POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float


def open_library(folder: Path, prefix: str, signatures: Signatures) -> ctypes.CDLL | None:
    """Return the library in a folder, if it runs here and was built from the sources in native/ beside it.

    Its functions `PREFIX_sources` and `PREFIX_supported` say so.
    """
    found = sorted(folder.glob("_native*.so"))
    if not found:
        return None
    try:
        shared = ctypes.CDLL(str(found[0]))
        known = {f"{prefix}_sources": (ctypes.c_uint, []), f"{prefix}_supported": (INT, []), **signatures}
        for name, (result, arguments) in known.items():
            function = getattr(shared, name)
            function.restype, function.argtypes = result, arguments
        is_ours = getattr(shared, f"{prefix}_sources")() == sources_sum(folder / "native")
        return shared if is_ours and getattr(shared, f"{prefix}_supported")() else None
    except (OSError, AttributeError):  # built for another machine, or from other sources
        return None


def sources_sum(folder: Path) -> int:
    """Return the checksum of the sources in a folder; setup.py computes the same."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


@functools.cache
def counting_library() -> ctypes.CDLL | None:
    """Return the library of the statistical families (models/native); callers declare function types."""
    return open_library(Path(__file__).parent, "windlass_models", {})
