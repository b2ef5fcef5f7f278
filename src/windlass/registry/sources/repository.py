"""What the modules of both hubs implement: one revision of a repository, and its files.

Also the sentence for a hub that does not answer, which is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from windlass.registry.sources.model_source import ModelSource
from windlass.spec.errors import StoreFailed

COPY = (
    "download the repository on a machine that reaches it, copy its directory here (config.json, "
    "*.safetensors, tokenizer.json), and run `windlass models import DIRECTORY`"
)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. A hub knows the sha256 of large files, or git's digest of small ones."""

    name: str
    bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class HubRepository(Protocol):
    """One revision of a repository."""

    @property
    def revision(self) -> str:
        """The commit that a branch or tag meant, where the hub says so."""

    @property
    def files(self) -> Sequence[HubFile]:
        """All files of the revision."""

    def fetch(self, file: HubFile, folder: Path) -> None:
        """Download one file below the folder, and resume an interrupted download."""


def unreachable(address: ModelSource, request: str, error: Exception, mirror: str) -> StoreFailed:
    """Say what was requested in vain, and what can be done on a machine without a network."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return StoreFailed(
        f"{address.text}: the hub cannot be reached: tried {request}: {reason}",
        hint=f"a mirror is used by setting {mirror}=https://...; or {COPY}",
    )
