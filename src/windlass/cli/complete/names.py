"""The names that a command may refer to: models, runs and job files, read from directories alone.

Shell completion calls this, so nothing slow is imported; the registry and the runs themselves are
windlass.registry.versions and windlass.runs.training.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "manifest.json"
MAX_FILES = 200


def home_for(words: list[str]) -> Path:
    """Return the home directory of a half-typed command."""
    given = ""
    for place, word in enumerate(words):
        if word.startswith("--home="):
            given = word.partition("=")[2]
        elif word == "--home" and place + 1 < len(words):
            given = words[place + 1]
    return Path(given or os.environ.get("WINDLASS_HOME") or ".windlass").expanduser()


def model_names(home: Path) -> list[str]:
    """Return what `windlass serve` takes: names, then versions and aliases."""
    names, versions = [], []
    for folder in _folders(home / "models"):
        numbers = [
            entry.name for entry in _folders(Path(folder)) if entry.name.isdigit() and _is_whole(entry)
        ]
        if not numbers:
            continue
        names.append(folder.name)
        versions += [f"{folder.name}@{number}" for number in sorted(numbers, key=int, reverse=True)]
        with contextlib.suppress(OSError, ValueError):
            versions += [
                f"{folder.name}@{alias}" for alias in json.loads((Path(folder) / "aliases.json").read_text())
            ]
    return [*names, *versions]


def run_names(home: Path) -> list[str]:
    """Return the jobs that have runs."""
    return [folder.name for folder in _folders(home / "runs")]


def files(typed: str, ending: str = "") -> list[str]:
    """Return the directories and files that complete a path."""
    folder, slash, _ = typed.rpartition("/")
    found: list[str] = []
    with contextlib.suppress(OSError):
        for entry in sorted(
            os.scandir(os.path.expanduser(folder + slash) or "."), key=lambda each: each.name
        ):
            if entry.name.startswith(".") or len(found) > MAX_FILES:
                continue
            if entry.is_dir():
                found.append(f"{folder}{slash}{entry.name}/")
            elif entry.name.endswith(ending):
                found.append(f"{folder}{slash}{entry.name}")
    return sorted(found, key=lambda each: each.endswith("/"))


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError):
        found = [entry for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
        yield from sorted(found, key=lambda entry: entry.name)


def _is_whole(folder: os.DirEntry[str]) -> bool:
    return os.path.exists(os.path.join(folder.path, MANIFEST))
