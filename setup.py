"""Builds the native libraries; everything else about the package is in pyproject.toml.

They are optional: where one cannot be built or run, torch or numpy computes instead.
"""

from __future__ import annotations

import platform
import zlib
from pathlib import Path

from setuptools import Extension, setup

PACKAGES = {
    "windlass.serve.engine": Path("src/windlass/serve/engine"),
    "windlass.models": Path("src/windlass/models"),
}
X86 = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []

# Products and sums are fused only where the source says so: results must not depend on how a compiler
# arranges the code for one row and for many.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", *X86]


def native(package: str, folder: Path) -> Extension:
    sources = sorted(path for path in (folder / "native").iterdir() if path.suffix in (".cpp", ".h"))
    # The library says what it was built from; one of other sources is not used (see models/native_loader.py).
    checksum = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    return Extension(
        f"{package}._native",
        sources=[str(path) for path in sources if path.suffix == ".cpp"],
        depends=[str(path) for path in sources],
        extra_compile_args=FLAGS,
        define_macros=[("WINDLASS_SOURCES", f"{checksum}u")],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


setup(ext_modules=[native(package, folder) for package, folder in PACKAGES.items()])
