"""The depot: the shared store between a home and its sites.

    depot.json           {"format", "id", "lock": null}
    chunks/AB/ABCD...    chunks of files, named by their content, as in a backup
    versions/NAME/N      a version: its manifest and the chunks of its files; written last
    aliases/NAME.json    the aliases of a model at the home
    sites/SITE.json      the inventory that a site reports
    rollouts/NAME.json   the record of a rollout over sites (sites.rollout)
    sweep                exists while unlisted chunks may have to be deleted

A version is in the depot once its record is; all chunks that it lists are written before.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from windlass.backup.repository import BackupRepository, begin, read_header, tried
from windlass.spec.errors import Damaged, NotFound
from windlass.store.manifest import Manifest, read_manifest
from windlass.store.store_dir import StoreDir

FORMAT = "windlass-depot-1"
VERSION = "windlass-depot-version-1"
HEADER, SWEEP = "depot.json", "sweep"

Key = tuple[str, int]
"""Name and number of a version."""


@dataclass(frozen=True)
class File:
    """A file of a version, and its chunks."""

    path: str
    bytes: int
    sha256: str
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class StoredVersion:
    """A version in the depot, with the unchanged text of its manifest."""

    name: str
    number: int
    manifest_text: str
    files: tuple[File, ...]
    piece_bytes: int
    published_s: float

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def key(self) -> Key:
        return self.name, self.number

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.manifest_text.encode(), f"{self} in the depot")

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class SiteInventory:
    """The versions and aliases that a site reports."""

    site: str
    at_s: float
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    """Digest of each version, by name and number."""
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)
    trouble: str = ""
    """The last error, while a version is missing."""


class ArtifactStore:
    """One depot. Versions never change, so each is read once."""

    def __init__(self, repository: BackupRepository) -> None:
        self.repository, self.place, self.id = repository, repository.place, repository.id
        self._known: dict[Key, StoredVersion] = {}

    def listed(self) -> list[Key]:
        """List the versions in the depot."""
        found = [name.split("/") for name in tried(lambda: self.place.names("versions"))]
        return sorted((parts[1], int(parts[2])) for parts in found if len(parts) == 3 and parts[2].isdigit())

    def version(self, key: Key) -> StoredVersion | None:
        """Return a version; None if it is gone."""
        if key not in self._known:
            try:
                data = tried(lambda: self.place.read(_record(key)))
            except NotFound:
                return None
            self._known[key] = _decode(data, f"{self.place.url}/{_record(key)}")
        return self._known[key]

    def versions(self) -> dict[Key, StoredVersion]:
        found = {key: self.version(key) for key in self.listed()}
        return {key: stored for key, stored in found.items() if stored is not None}

    def put(self, stored: StoredVersion) -> StoredVersion:
        """Create a version unless it exists; of two writers the first wins. Return the stored version."""
        tried(lambda: self.place.create(_record(stored.key), _encode(stored)))
        there = self.version(stored.key)
        return stored if there is None else there

    def forget(self, key: Key) -> None:
        tried(lambda: self.place.remove(_record(key)))
        self._known.pop(key, None)

    def aliases(self) -> dict[str, dict[str, int]]:
        names = [name for name in tried(lambda: self.place.names("aliases")) if name.endswith(".json")]
        found = {name.rsplit("/", 1)[-1][: -len(".json")]: self._json(name) for name in names}
        return {name: aliases for name, aliases in found.items() if aliases is not None}

    def set_aliases(self, name: str, aliases: dict[str, int]) -> None:
        self._write(f"aliases/{name}.json", aliases)

    def reports(self) -> dict[str, SiteInventory]:
        """Return the last report of every site."""
        names = [name for name in tried(lambda: self.place.names("sites")) if name.endswith(".json")]
        found = [fields for name in names if (fields := self._json(name)) is not None]
        return {report.site: report for report in (SiteInventory(**fields) for fields in found)}

    def tell(self, report: SiteInventory) -> None:
        self._write(f"sites/{report.site}.json", asdict(report))

    def read(self, name: str) -> Any:
        """Return the JSON content under a name, or None."""
        return self._json(name)

    def write(self, name: str, content: Any) -> None:
        self._write(name, content)

    def mark(self, *, sweep: bool) -> None:
        """Mark that chunks may have to be deleted; called before their versions are."""
        if sweep:
            tried(lambda: self.place.write(SWEEP, b"1"))
        else:
            tried(lambda: self.place.remove(SWEEP))

    @property
    def is_marked(self) -> bool:
        return tried(lambda: self.place.exists(SWEEP))

    def _json(self, name: str) -> Any:
        try:
            return json.loads(tried(lambda: self.place.read(name)))
        except NotFound:
            return None
        except ValueError as error:
            raise Damaged(f"{self.place.url}/{name}: not readable: {error}") from None

    def _write(self, name: str, content: Any) -> None:
        data = (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
        tried(lambda: self.place.write(name, data))


def open_depot(url: str, *, create: bool = False) -> ArtifactStore:
    """Open a depot; with `create`, create it if there is none."""
    place = StoreDir(url)
    header = read_header(place, HEADER, FORMAT)
    if header is None and not create:
        raise NotFound(
            f"{url}: there is no depot yet", hint="`windlass sites replicate` at the home creates one"
        )
    if header is None:
        header = begin(place, HEADER, FORMAT)
    return ArtifactStore(BackupRepository(place, header["id"], None))


def _record(key: Key) -> str:
    return f"versions/{key[0]}/{key[1]}"


def _encode(stored: StoredVersion) -> bytes:
    body = json.dumps(asdict(stored), sort_keys=True)
    record = {"format": VERSION, "sha256": hashlib.sha256(body.encode()).hexdigest(), "version": body}
    return (json.dumps(record) + "\n").encode()


def _decode(data: bytes, where: str) -> StoredVersion:
    try:
        record = json.loads(data)
        if record["format"] != VERSION:
            raise ValueError(f"another format, {record['format']!r}")
        if hashlib.sha256(record["version"].encode()).hexdigest() != record["sha256"]:
            raise ValueError("the bytes differ from those written")
        body = json.loads(record["version"])
        files = tuple(File(**{**file, "chunks": tuple(file["chunks"])}) for file in body.pop("files"))
        return StoredVersion(**body, files=files)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{where}: not readable as a version: {error}") from None
