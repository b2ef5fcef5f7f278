"""Builds the engine's native library; everything else about the package is in pyproject.toml.

The library is optional: where it cannot be built or run, the engine computes with torch instead.
"""

from __future__ import annotations

import platform
import zlib
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/windlass/serve/engine/native")
X86 = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []

# Products and sums are fused only where the source says so: results must not depend on how a compiler
# arranges the code for one row and for many.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", *X86]

SOURCES = sorted(path for path in NATIVE.iterdir() if path.suffix in (".cpp", ".h"))
# The library says what it was built from; one of other sources is not used (see native.py).
SUM = zlib.crc32(b"".join(path.read_bytes() for path in SOURCES))

setup(
    ext_modules=[
        Extension(
            "windlass.serve.engine._native",
            sources=[str(path) for path in SOURCES if path.suffix == ".cpp"],
            depends=[str(path) for path in SOURCES],
            extra_compile_args=FLAGS,
            define_macros=[("WINDLASS_SOURCES", f"{SUM}u")],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
