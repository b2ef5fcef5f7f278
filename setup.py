"""Builds the engine's native library; everything else about the package is in pyproject.toml.

The library is optional: where it cannot be built or run, the engine computes with torch instead.
"""

from __future__ import annotations

import platform
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/windlass/serve/engine/native")
X86 = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []

# Products and sums are fused only where the source says so: results must not depend on how a compiler
# arranges the code for one row and for many.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", *X86]

setup(
    ext_modules=[
        Extension(
            "windlass.serve.engine._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
