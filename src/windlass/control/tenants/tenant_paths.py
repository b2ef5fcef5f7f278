"""The paths and URLs that belong to a tenant: its home on this machine, and its prefix in a store.

A path is checked as the kernel will resolve it, links followed; a URL must be plain, so that nothing in it
can be decoded in two ways. What a tenant changes after the check (a link put in the place of a file) is
refused only by its user id, where it has one (cluster.process.sandbox).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.spec.errors import BadJob
from windlass.spec.job import STDLIB

MAX_FILES = 1_000_000
"""Maximum that one glob or directory may name; more would keep the control plane busy."""
GLOB = re.compile(r"[*?\[]")
_PLAIN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._~!(),;=&'+ /*?\[\]-]+")
"""No user, port, percent sign, backslash, fragment, control character: nothing that is decoded later."""


@dataclass(frozen=True)
class TenantPaths:
    """The paths and URLs that one tenant may name."""

    tenant: str
    home: Path
    root: str | None = None

    def check(self, place: str, what: str) -> str:
        """Return a path or URL as processes use it; refuse one that is not this tenant's.

        `what` is the setting that holds it, e.g. "[corpus] sources".
        """
        if place == STDLIB:
            return place
        if "\x00" in place or "\n" in place or "::" in place:
            raise self._refusal(place, what, "it is not a plain path or URL")
        if place.startswith("file:"):
            return str(self._path(_file_path(place), place, what))
        if "://" in place:
            return self._url(place, what)
        return str(self._path(place, place, what))

    def check_files(self, source: str, what: str) -> str:
        """Check a path or URL to read, and every file that a local directory or glob matches."""
        resolved = self.check(source, what)
        if resolved == STDLIB or "://" in resolved:
            return resolved
        for number, path in enumerate(_matches(Path(resolved))):
            if number >= MAX_FILES:
                raise self._refusal(source, what, f"it names more than {MAX_FILES} files")
            if not self._inside(path):
                raise self._refusal(source, what, "a link in it points outside")
        return resolved

    def _path(self, text: str, given: str, what: str) -> Path:
        if text.startswith("~") or "$" in text:
            raise self._refusal(given, what, "it contains ~ or $, which are not expanded here")
        path = Path(os.path.normpath(self.home / text))
        if not self._inside(path) or not self._inside(_fixed_part(path)):
            raise self._refusal(given, what, "it points outside")
        return path

    def _inside(self, path: Path) -> bool:
        """Whether a path, all links followed, is inside the home or a local root."""
        real = Path(os.path.realpath(path))
        roots = [self.home] + ([Path(self.root)] if self.root and self.root.startswith("/") else [])
        return any(real.is_relative_to(os.path.realpath(root)) for root in roots)

    def _url(self, url: str, what: str) -> str:
        parts = url.partition("://")[2].split("/")
        if _PLAIN_URL.fullmatch(url) is None or {"", ".", ".."} & set(parts[:-1]) or parts[-1] in (".", ".."):
            raise self._refusal(url, what, "it is not a plain URL")
        root = (self.root or "").rstrip("/")
        if "://" not in root or GLOB.search(url[: len(root) + 1]) or not f"{url}/".startswith(f"{root}/"):
            raise self._refusal(url, what, "it points outside")
        return url

    def _refusal(self, place: str, what: str, why: str) -> BadJob:
        shown = place if len(place) <= 100 and place.isprintable() else f"{ascii(place[:100])[1:-1]}..."
        below = f"its home or {self.root}" if self.root else "its home"
        return BadJob(
            f"{what}: tenant '{self.tenant}' may not use '{shown}': {why}",
            hint=f"its jobs may use what is below {below}; relative paths start in its home",
        )


def _file_path(url: str) -> str:
    """Return the path of file:PATH, file:///PATH and file://localhost/PATH, undecoded as fsspec reads it."""
    rest = url.removeprefix("file:")
    return rest[2:] if rest.startswith("//") else rest


def _fixed_part(path: Path) -> Path:
    """Return the part of a glob before its first wildcard."""
    fixed = Path("/")
    for part in path.parts[1:]:
        if GLOB.search(part):
            break
        fixed /= part
    return fixed


def _matches(path_or_glob: Path) -> Iterator[Path]:
    """Yield everything that a path or glob can match, links included."""
    if GLOB.search(str(path_or_glob)):
        found: Iterator[Path] = (
            Path(name) for name in glob.iglob(str(path_or_glob), recursive=True, include_hidden=True)
        )
    else:
        found = iter((path_or_glob,))
    for path in found:
        yield path
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                yield from (Path(folder, name) for name in (*folders, *names))
