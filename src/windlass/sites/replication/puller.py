"""Pulls versions from the depot into a site's registry.

    record -> chunks, each checked -> models/NAME/.coming/N -> complete? -> models/NAME/N

A version appears at the site atomically. An interrupted download resumes each file after its last complete
chunk. Versions that the site serves, that an alias names, or that the site registered itself are never
removed; `.brought.json` lists the versions that were pulled.
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
"""Longest time between two reports of a site."""


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
    """Pulls from one depot to one site."""

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
        self._last_report: SiteInventory | None = None

    def step(self) -> Brought:
        """Pull missing versions, remove obsolete ones, and report. The next pass retries what failed.

        One pass at a time at each site; raises InUse while another is running.
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
                done.missing.append(
                    str(stored[key])
                )  # another process registers a version here: retried later
            except Damaged as error:
                if key in self._depot.listed():  # else it was deleted meanwhile, with its chunks
                    done.missing.append(str(stored[key]))
                    done.refused.append(error.message)
            self._report(done)
        for key, version in here.items():
            if key in stored and version.manifest.digest != stored[key].manifest.digest:
                done.refused.append(f"{version}: this site has another model under this number")
        self._adopt_aliases(aliases, done)
        self._remove(stored, done)
        self._report(done)
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
        """Complete one file; it is renamed once all of it is there."""
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
                    raise Damaged(f"{path}: the content of its chunks is not what was published")
            part.rename(path)
            sync_folder(path.parent)

    def _arrived(self, file: File, piece_bytes: int, target: IO[bytes]) -> tuple[Any, int]:
        """Keep the complete chunks that an earlier attempt left; return their digest and number."""
        digest, held = hashlib.sha256(), 0
        target.seek(0)
        for chunk in file.chunks:
            data = target.read(piece_bytes)
            if self._depot.repository.name(data) != chunk:
                break
            digest.update(data)
            held += 1
        end = min(held * piece_bytes, file.bytes)
        target.truncate(end)
        target.seek(end)
        return digest, held

    def _pieces(self, chunks: tuple[str, ...]) -> Iterator[bytes]:
        """Fetch chunks by several threads, in order, a few ahead."""
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
        data = self._depot.repository.get(chunk)
        self._pace.pay(len(data))
        return data

    def _adopt_aliases(self, aliases: dict[str, dict[str, int]], done: Brought) -> None:
        """Give a model that is new here the aliases of the home; later only a rollout changes them."""
        for name, meant in aliases.items():
            if meant and not self._registry.aliases(name) and name in self._registry.names():
                try:
                    self._registry.adopt_aliases(name, meant)
                except InUse:
                    done.refused.append(
                        f"{name}: its registry is in use; its aliases come with the next pass"
                    )

    def _remove(self, stored: dict[Key, StoredVersion], done: Brought) -> None:
        """Remove pulled versions that the depot no longer has, of models that it still has."""
        named = {name for name, _ in stored}
        for name in named & set(self._registry.names()):
            brought = self._brought(name)
            for version in self._registry.versions(name):
                mine = brought.get(str(version.number)) == version.manifest.digest
                if mine and (name, version.number) not in stored:
                    with suppress(InUse, NotFound):  # it is served, or an alias names it: retried later
                        self._registry.delete(str(version))
                        done.removed.append(str(version))
            self._clear(name, {number for key, number in stored if key == name})

    def _clear(self, name: str, numbers: set[int]) -> None:
        """Remove partial downloads of versions that are complete or no longer in the depot."""
        folder = self._registry.root / name / COMING
        there = [path for path in folder.glob("*") if path.name.isdigit()] if folder.exists() else []
        whole = {version.number for version in self._registry.versions(name)}
        for path in there:
            if int(path.name) not in numbers or int(path.name) in whole:
                StoreDir(path).remove()

    def _note(self, stored: StoredVersion) -> None:
        """Record that a version was pulled, before it appears."""
        brought = {**self._brought(stored.name), str(stored.number): stored.manifest.digest}
        StoreDir(self._registry.root / stored.name).write(BROUGHT, json.dumps(brought).encode())

    def _brought(self, name: str) -> dict[str, str]:
        file = self._registry.root / name / BROUGHT
        return dict(json.loads(file.read_bytes())) if file.exists() else {}

    def _report(self, done: Brought) -> None:
        """Report the versions of this site if they changed, or the last report is old."""
        versions: dict[str, dict[str, str]] = {}
        for (name, number), version in sorted(self._here().items()):
            versions.setdefault(name, {})[str(number)] = version.manifest.digest
        aliases = {name: dict(self._registry.aliases(name)) for name in versions}
        now = self._clock()
        report = SiteInventory(self._site, now, versions, aliases, "; ".join(done.refused))
        last = self._last_report
        if last is None or now - last.at_s >= TELL_EVERY_S or replace(report, at_s=last.at_s) != last:
            self._depot.tell(report)
            self._last_report = report


def _safe(path: str) -> PurePosixPath:
    """Reject a path that leads out of its folder: a depot is untrusted input."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\x00" in path:
        raise Damaged(f"{path!r}: not a path below a version")
    return pure


def _check_whole(stored: StoredVersion) -> None:
    """Raise unless the files of the record are those of the manifest."""
    files = {file.path: (file.bytes, file.sha256) for file in stored.files}
    listed = {name: (record.bytes, record.sha256) for name, record in stored.manifest.files.items()}
    if files != listed:
        raise Damaged(f"{stored}: the depot's record and its manifest differ")
