"""Takes versions out of the depot into a site's registry.

    record -> pieces, each checked -> models/NAME/.coming/N -> whole? -> models/NAME/N

A version appears at the site all at once. What arrived before a crash is used: a file goes on from its last
whole piece. What the site serves, or an alias of it names, is never removed, nor is what it registered by
itself; `.brought.json` tells which versions came from here.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from windlass.backup.uploader import RateLimit
from windlass.registry.versions import Registry, Version, check_name
from windlass.sites.replication.artifact_store import ArtifactStore, File, Key, SiteInventory, StoredVersion
from windlass.sites.replication.publish import held
from windlass.sites.replication.replication_set import in_order
from windlass.spec.errors import Damaged, InUse, NotFound
from windlass.spec.protocol.progress import Progress, silent
from windlass.spec.protocol.progress import Report as Show
from windlass.spec.sites import Replicate
from windlass.store.lock import locked
from windlass.store.manifest import MANIFEST
from windlass.store.store_dir import StoreDir, sync_folder, translate_os_errors

COMING, BROUGHT, LOCK = ".coming", ".brought.json", ".coming.lock"
TELL_EVERY_S = 10.0
"""Most time between two reports of a site that watches."""


@dataclass
class Brought:
    """What one pass did."""

    brought: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fetched_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class Puller:
    """One site's way out of one depot."""

    def __init__(
        self,
        home: Path,
        depot: ArtifactStore,
        site: str,
        rule: Replicate,
        *,
        show: Show = silent,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._depot, self._site, self._rule = Registry(home), depot, site, rule
        self._show, self._clock, self._pace = show, clock, RateLimit(rule.rate)
        self._told: SiteInventory | None = None

    def step(self) -> Brought:
        """Bring what is missing, remove what need not stay, and report. What fails is tried by the next.

        One at a time at each site; raises InUse while another is at it.
        """
        with locked(self._registry.root / LOCK, f"the replication to {self._site}"):
            return self._pass(Brought())

    def _pass(self, done: Brought) -> Brought:
        stored, aliases = self._depot.versions(), self._depot.aliases()
        here = self._here()
        for key in in_order(set(stored) - set(here), aliases):
            try:
                self._bring(stored[key], done)
            except InUse:
                done.missing.append(str(stored[key]))  # somebody registers a version here: later
            except Damaged as error:
                if key in self._depot.listed():  # else it was forgotten meanwhile, with its pieces
                    done.missing.append(str(stored[key]))
                    done.refused.append(error.message)
            self._tell(done)
        for key, version in here.items():
            if key in stored and version.manifest.digest != stored[key].manifest.digest:
                done.refused.append(f"{version}: this site has another model under this number")
        self._adopt_aliases(aliases, done)
        self._remove(stored, done)
        self._tell(done)
        return done

    def _here(self) -> dict[Key, Version]:
        found = held(self._registry)
        return {(name, number): one for name, ones in found.items() for number, one in ones.items()}

    def _bring(self, stored: StoredVersion, done: Brought) -> None:
        check_name(stored.name)
        folder = self._registry.root / stored.name
        staging = folder / COMING / str(stored.number)
        arrived = 0

        def count(size: int, *, moved: bool) -> None:
            nonlocal arrived
            arrived += size
            done.fetched_bytes += size if moved else 0
            self._show(Progress(f"bring {stored}", arrived, stored.bytes, "B"))

        for file in stored.files:
            self._file(file, stored.piece_bytes, staging / _safe(file.path), count)
        _check_whole(stored)
        self._note(stored)
        StoreDir(staging).write(MANIFEST, stored.manifest_text.encode())
        self._registry.adopt(stored.name, stored.number, staging)
        done.brought.append(str(stored))

    def _file(self, file: File, piece_bytes: int, path: Path, count: Callable[..., None]) -> None:
        """Complete one file; it gets its name once all of it is there."""
        if path.exists():
            with path.open("rb") as there:
                if hashlib.file_digest(there, "sha256").hexdigest() == file.sha256:
                    count(file.bytes, moved=False)
                    return
            path.unlink()
        part = path.with_name(f"{path.name}.part")
        with translate_os_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("a+b") as target:
                digest, held = self._arrived(file, piece_bytes, target)
                count(target.tell(), moved=False)
                for data in self._pieces(file.chunks[held:]):
                    digest.update(data)
                    target.write(data)
                    count(len(data), moved=True)
                target.flush()
                os.fsync(target.fileno())
                if (target.tell(), digest.hexdigest()) != (file.bytes, file.sha256):
                    target.truncate(0)
                    raise Damaged(f"{path}: what its pieces hold is not what was published")
            part.rename(path)
            sync_folder(path.parent)

    def _arrived(self, file: File, piece_bytes: int, target: IO[bytes]) -> tuple[Any, int]:
        """Keep the whole pieces that an earlier attempt left; return their digest and number."""
        digest, held = hashlib.sha256(), 0
        target.seek(0)
        for chunk in file.chunks:
            data = target.read(piece_bytes)
            if self._depot.vault.name(data) != chunk:
                break
            digest.update(data)
            held += 1
        end = min(held * piece_bytes, file.bytes)
        target.truncate(end)
        target.seek(end)
        return digest, held

    def _pieces(self, chunks: tuple[str, ...]) -> Iterator[bytes]:
        """Fetch pieces by several threads, in order, a few ahead."""
        ahead: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(self._rule.parallel, "bring") as pool:
            try:
                for chunk in chunks:
                    ahead.append(pool.submit(self._get, chunk))
                    if len(ahead) > self._rule.parallel:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _get(self, chunk: str) -> bytes:
        data = self._depot.vault.get(chunk)
        self._pace.pay(len(data))
        return data

    def _adopt_aliases(self, aliases: dict[str, dict[str, int]], done: Brought) -> None:
        """A model that is new here is served as at home; from then on only a roll-out moves its aliases."""
        for name, meant in aliases.items():
            if meant and not self._registry.aliases(name) and name in self._registry.names():
                try:
                    self._registry.adopt_aliases(name, meant)
                except InUse:
                    done.refused.append(
                        f"{name}: its registry is in use; its aliases come with the next pass"
                    )

    def _remove(self, stored: dict[Key, StoredVersion], done: Brought) -> None:
        """Remove what came from the depot and is there no more, of models that are there."""
        named = {name for name, _ in stored}
        for name in named & set(self._registry.names()):
            brought = self._brought(name)
            for version in self._registry.versions(name):
                mine = brought.get(str(version.number)) == version.manifest.digest
                if mine and (name, version.number) not in stored:
                    with suppress(InUse, NotFound):  # it is served, or an alias names it: later, perhaps
                        self._registry.delete(str(version))
                        done.removed.append(str(version))
            self._clear(name, {number for key, number in stored if key == name})

    def _clear(self, name: str, numbers: set[int]) -> None:
        """Remove what was coming and will not come any more."""
        folder = self._registry.root / name / COMING
        there = [path for path in folder.glob("*") if path.name.isdigit()] if folder.exists() else []
        whole = {version.number for version in self._registry.versions(name)}
        for path in there:
            if int(path.name) not in numbers or int(path.name) in whole:
                StoreDir(path).remove()

    def _note(self, stored: StoredVersion) -> None:
        """Write down where a version comes from, before it appears."""
        brought = {**self._brought(stored.name), str(stored.number): stored.manifest.digest}
        StoreDir(self._registry.root / stored.name).write(BROUGHT, json.dumps(brought).encode())

    def _brought(self, name: str) -> dict[str, str]:
        file = self._registry.root / name / BROUGHT
        return dict(json.loads(file.read_bytes())) if file.exists() else {}

    def _tell(self, done: Brought) -> None:
        """Report what is here if that changed, and now and then that this site lives."""
        versions: dict[str, dict[str, str]] = {}
        for (name, number), version in sorted(self._here().items()):
            versions.setdefault(name, {})[str(number)] = version.manifest.digest
        aliases = {name: dict(self._registry.aliases(name)) for name in versions}
        now = self._clock()
        report = SiteInventory(self._site, now, versions, aliases, "; ".join(done.refused))
        last = self._told
        if last is None or now - last.at_s >= TELL_EVERY_S or replace(report, at_s=last.at_s) != last:
            self._depot.tell(report)
            self._told = report


def _safe(path: str) -> PurePosixPath:
    """Refuse a path that leads out of its folder: what a depot says is data, whoever wrote it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\x00" in path:
        raise Damaged(f"{path!r}: no path below a version")
    return pure


def _check_whole(stored: StoredVersion) -> None:
    """The files that arrived must be those of the manifest."""
    files = {file.path: (file.bytes, file.sha256) for file in stored.files}
    listed = {name: (record.bytes, record.sha256) for name, record in stored.manifest.files.items()}
    if files != listed:
        raise Damaged(f"{stored}: the depot's record and its manifest differ")
