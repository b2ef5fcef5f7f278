"""Publishes the versions of a home to the depot.

Input: a registry and a rule that selects versions. Output: these versions in the depot, complete, and no
other versions of these models. It may be killed at any point and run again; two at once do the
same work twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from windlass.backup.locks import claimed, pruning
from windlass.backup.uploader import CHUNK_BYTES, RateLimit, Sender, UploadCache
from windlass.registry.versions import Registry, Version
from windlass.sites.replication.artifact_store import ArtifactStore, File, Key, StoredVersion
from windlass.sites.replication.replication_set import ReplicatedModel, forgettable, wanted
from windlass.spec.errors import Damaged, NotFound, StoreFailed
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.spec.sites import Replicate
from windlass.store.manifest import MANIFEST

FOLDER = "sites"
ROUNDS = 4


@dataclass
class Published:
    """What one pass did."""

    published: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Versions that cannot be published, and why."""
    sent_bytes: int = 0
    kept_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class Publisher:
    """Publishes one home to one depot."""

    def __init__(
        self,
        home: Path,
        depot: ArtifactStore,
        rule: Replicate,
        *,
        report: Report = silent,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._depot, self._rule = Registry(home), depot, rule
        self._folder, self._report, self._clock = home / FOLDER, report, clock
        self._pace = RateLimit(rule.rate)

    def step(self) -> Published:
        """Send new versions, then delete those that the rule does not keep."""
        done, here = Published(), held(self._registry)
        models = {name: _model(self._registry, name, versions) for name, versions in here.items()}
        keep, there = wanted(models, self._rule), set(self._depot.listed())
        new = [here[name][number] for name, number in sorted(keep - there)]
        if new:
            self._depot.mark(sweep=True)  # if this is interrupted, chunks may stay unlisted
            with claimed(self._depot.place, "make"):
                self._send(new, done)
        for name, number in sorted(keep & there):
            self._compare(here[name][number], done)
        self._publish_aliases(models, keep)
        self._forget(forgettable(there, models, keep), done)
        return done

    def _send(self, new: list[Version], done: Published) -> None:
        memory = UploadCache(self._folder, self._depot.id, now_s=self._clock())
        passed, total = 0, sum(version.manifest.bytes for version in new)

        def count(size: int) -> None:
            nonlocal passed
            passed += size
            self._report(Progress("publish", passed, max(total, passed), "B"))

        sender = Sender(
            self._depot.repository, memory, parallel=self._rule.parallel, pace=self._pace, passed=count
        )
        with sender:
            for version in new:
                self._send_one(version, sender, done)
        memory.save()
        done.sent_bytes, done.kept_bytes = sender.sent.sent_bytes, sender.sent.kept_bytes

    def _send_one(self, version: Version, sender: Sender, done: Published) -> None:
        try:
            for _ in range(ROUNDS):
                stored = self._stored(version, sender)
                sender.finish()
                if not sender.missing(stored.chunks):
                    there = self._depot.put(stored)
                    if there.manifest.digest == stored.manifest.digest:
                        done.published.append(str(version))
                    else:
                        self._compare(version, done)
                    return
            raise StoreFailed(f"{self._depot.place.url}: chunks that were sent are missing")
        except NotFound:
            return  # it was deleted meanwhile
        except Damaged as error:
            done.refused.append(error.message)

    def _stored(self, version: Version, sender: Sender) -> StoredVersion:
        """Send the chunks of a version, checked against its manifest."""
        files = []
        for path, record in version.manifest.files.items():
            entry = sender.send(version.path / path, f"models/{version.name}/{version.number}/{path}")
            if (entry.bytes, entry.sha256) != (record.bytes, record.sha256):
                raise Damaged(f"{version.path / path}: the bytes differ from those written")
            files.append(File(path, entry.bytes, entry.sha256, entry.chunks))
        text = (version.path / MANIFEST).read_text(encoding="utf-8")
        return StoredVersion(version.name, version.number, text, tuple(files), CHUNK_BYTES, self._clock())

    def _compare(self, version: Version, done: Published) -> None:
        """Report if the depot has another model under the same number: two homes write to it."""
        there = self._depot.version((version.name, version.number))
        if there is not None and there.manifest.digest != version.manifest.digest:
            done.refused.append(
                f"{version}: the depot has another model under this number, from another home"
            )

    def _publish_aliases(self, models: dict[str, ReplicatedModel], keep: set[Key]) -> None:
        published = self._depot.aliases()
        for name in sorted({name for name, _ in keep}):
            aliases = dict(models[name].aliases)
            if published.get(name) != aliases:
                self._depot.set_aliases(name, aliases)

    def _forget(self, gone: set[Key], done: Published) -> None:
        """Delete versions before their chunks; after a crash, the mark makes the next pass finish it."""
        if not gone and not self._depot.is_marked:
            return
        if gone:
            self._depot.mark(sweep=True)
        for key in sorted(gone):
            self._depot.forget(key)
            done.forgotten.append(f"{key[0]}@{key[1]}")
        with pruning(self._depot.place) as is_alone:
            if is_alone:
                listed = {chunk for stored in self._depot.versions().values() for chunk in stored.chunks}
                self._depot.repository.drop(sorted(set(self._depot.repository.chunks()) - listed))
                self._depot.mark(sweep=False)


def held(registry: Registry) -> dict[str, dict[int, Version]]:
    """Return the versions of a registry, by name and number."""
    return {name: {one.number: one for one in registry.versions(name)} for name in registry.names()}


def _model(registry: Registry, name: str, versions: dict[int, Version]) -> ReplicatedModel:
    return ReplicatedModel(tuple(versions), registry.aliases(name), registry.last(name))
