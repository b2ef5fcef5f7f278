"""Models by name and version.

    models/NAME/VERSION/      a Hugging Face directory with windlass.json (lineage) and a manifest
    models/NAME/aliases.json  {"prod": 3, "previous": 2}

A version never changes once its manifest is there. A bare name means @prod, or the newest version
where nothing was promoted. The format is docs/formats/registry.md.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.spec.errors import AskedWrongly, BadInput, InUse, NotFound, did_you_mean
from windlass.spec.run import LINEAGE
from windlass.store.lock import held, locked
from windlass.store.manifest import DirectoryWriter, Manifest, load_manifest, verify
from windlass.store.store_dir import StoreDir, sync_folder

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
PROD, PREVIOUS, LATEST = "prod", "previous", "latest"


@dataclass(frozen=True)
class Version:
    """One immutable model."""

    name: str
    number: int
    path: Path
    manifest: Manifest
    aliases: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def lineage(self) -> dict[str, Any]:
        """Where the model comes from; an imported model has only its sizes."""
        file = self.path / LINEAGE
        return dict(json.loads(file.read_text()) if file.exists() else self.manifest.meta.get("model", {}))

    @property
    def precision(self) -> str:
        """Data type of the stored weights: float32, bfloat16, int8, int4."""
        file = self.path / "config.json"
        config = json.loads(file.read_text()) if file.exists() else {}  # an adapter has none
        return str((config.get("quantization_config") or config).get("weights", config.get("dtype", "")))

    @property
    def registered(self) -> str:
        return str(self.manifest.meta.get("registered", ""))

    def facts(self) -> dict[str, Any]:
        """Return the version's properties as JSON values."""
        lineage = self.lineage
        return {
            "model": str(self),
            "name": self.name,
            "version": self.number,
            "aliases": list(self.aliases),
            "path": str(self.path),
            "parameters": lineage.get("parameters"),
            "precision": self.precision,
            "metrics": lineage.get("metrics"),
            "adapter_of": self.manifest.meta.get("adapter_of"),
            "origin": self.manifest.meta.get("origin"),
            "digest": self.manifest.digest,
            "bytes": self.manifest.bytes,
            "registered": self.registered,
        }


class Registry:
    """The models of one home."""

    def __init__(self, home: Path) -> None:
        self.root = home / "models"

    def names(self) -> list[str]:
        found = sorted(p.name for p in self.root.iterdir()) if self.root.exists() else []
        return [name for name in found if NAME.fullmatch(name) and self.versions(name)]

    def versions(self, name: str) -> list[Version]:
        """List the complete versions of a model, oldest first."""
        aliases = self.aliases(name)
        found = []
        for number in self._numbers(name):
            path = self.root / name / str(number)
            manifest = load_manifest(StoreDir(path))
            if manifest is not None:
                mine = tuple(alias for alias, n in aliases.items() if n == number)
                found.append(Version(name, number, path, manifest, mine))
        return found

    def aliases(self, name: str) -> dict[str, int]:
        file = self.root / name / "aliases.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def last(self, name: str) -> int:
        """The highest number ever used: the number of a deleted version is not reused."""
        file = self.root / name / "last"
        return int(file.read_text()) if file.exists() else 0

    def find(self, reference: str) -> Version:
        """Return the version that "name", "name@3" or "name@prod" means."""
        name, at, wanted = reference.partition("@")
        versions = self.versions(name) if NAME.fullmatch(name) else []
        if not versions:
            known = self.names()
            hint = (
                did_you_mean(name, known) if known else "nothing is registered yet; `windlass train` does it"
            )
            raise NotFound(f"no model '{name}' is registered", hint=hint)
        number = self._number(name, wanted if at else "", versions)
        for version in versions:
            if version.number == number:
                return version
        there = ", ".join(str(v.number) for v in versions)
        raise NotFound(f"{name} has no version {wanted}", hint=f"versions: {there}")

    def register(self, name: str, source: Path, *, origin: Mapping[str, Any] | None = None) -> Version:
        """Copy a finished model directory in as the next version; `origin` is what it was imported from."""
        check_name(name)
        manifest = verify(StoreDir(source))
        with locked(self.root / name / ".lock", f"the registry of {name}"):
            self._sweep(name)
            number = max([*self._numbers(name), self.last(name)], default=0) + 1
            path = self.root / name / str(number)
            writer = DirectoryWriter(StoreDir(path))
            for file in manifest.files:
                with (source / file).open("rb") as read, writer.writing(file) as write:
                    shutil.copyfileobj(read, write, 1 << 20)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            meta = {**manifest.meta, "name": name, "version": number, "registered": now}
            writer.commit(meta if origin is None else {**meta, "origin": dict(origin)})
            StoreDir(self.root / name).write("last", str(number).encode())
        return self.find(f"{name}@{number}")

    def adopt(self, name: str, number: int, source: Path) -> Version:
        """Register a finished directory under the number that it has elsewhere; it appears atomically.

        Input: a directory on the same disk, which is moved. An existing version stays.
        """
        check_name(name)
        with locked(self.root / name / ".lock", f"the registry of {name}"):
            path = self.root / name / str(number)
            if load_manifest(StoreDir(path)) is None:
                StoreDir(path).remove()  # its writer died before it was complete
                source.rename(path)
                sync_folder(path.parent)
            if self.last(name) < number:
                StoreDir(self.root / name).write("last", str(number).encode())
        return self.find(f"{name}@{number}")

    def adopt_aliases(self, name: str, aliases: dict[str, int]) -> bool:
        """Give a model the aliases that it has elsewhere, unless it has some; return whether it was done."""
        with locked(self.root / name / ".lock", f"the registry of {name}"):
            if not aliases or self.aliases(name) or not set(aliases.values()) <= set(self._numbers(name)):
                return False
            self._write_aliases(name, aliases)
        return True

    def promote(self, reference: str) -> Version:
        """Make a version @prod; the version that was @prod becomes @previous."""
        version = self.find(reference)
        with locked(self.root / version.name / ".lock", f"the registry of {version.name}"):
            aliases = self.aliases(version.name)
            if aliases.get(PROD) != version.number:
                if PROD in aliases:
                    aliases[PREVIOUS] = aliases[PROD]
                aliases[PROD] = version.number
                self._write_aliases(version.name, aliases)
        return self.find(str(version))

    def roll_back(self, name: str) -> Version:
        """Swap @previous and @prod, so a roll-back can be undone."""
        self.find(name)
        with locked(self.root / name / ".lock", f"the registry of {name}"):
            aliases = self.aliases(name)
            if PREVIOUS not in aliases:
                raise AskedWrongly(
                    f"{name} has no @previous to roll back to", hint="promote two versions first"
                )
            aliases[PROD], aliases[PREVIOUS] = aliases[PREVIOUS], aliases[PROD]
            self._write_aliases(name, aliases)
        return self.find(f"{name}@{PROD}")

    def put_back(self, name: str, aliases: dict[str, int]) -> None:
        """Restore earlier aliases of a model, except those of deleted versions."""
        with locked(self.root / name / ".lock", f"the registry of {name}"):
            there = set(self._numbers(name))
            self._write_aliases(name, {alias: n for alias, n in aliases.items() if n in there})

    def delete(self, reference: str) -> Version:
        """Delete a version; raise if an alias names it or a service uses it."""
        name, at, _ = reference.partition("@")
        if not at:
            raise AskedWrongly(f"'{reference}' names no version", hint=f"give one: {name}@N")
        version = self.find(reference)
        if version.aliases:
            raise InUse(f"{version} is @{version.aliases[0]}", hint="promote another version first")
        with (
            locked(self.root / name / ".lock", f"the registry of {name}"),
            locked(self._hold_file(version), str(version)),
        ):
            # The manifest is deleted first: without it the directory is not a version.
            (version.path / "manifest.json").unlink()
            StoreDir(version.path).remove()
        self._hold_file(version).unlink(missing_ok=True)
        return version

    @contextmanager
    def holding(self, version: Version) -> Iterator[None]:
        """Keep a version from being deleted while it is served."""
        with held(self._hold_file(version), str(version)):
            yield

    def _hold_file(self, version: Version) -> Path:
        return self.root / version.name / f".{version.number}.lock"

    def _numbers(self, name: str) -> list[int]:
        folder = self.root / name
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.exists() else []

    def _number(self, name: str, wanted: str, versions: list[Version]) -> int | None:
        aliases = {LATEST: versions[-1].number, **self.aliases(name)}
        if not wanted:
            return aliases.get(PROD, aliases[LATEST])
        if wanted.isdigit():
            return int(wanted)
        if wanted not in aliases:
            raise NotFound(f"{name} has no alias @{wanted}", hint=did_you_mean(wanted, list(aliases)))
        return aliases[wanted]

    def _sweep(self, name: str) -> None:
        """Remove versions whose writer died before the manifest was written."""
        for number in self._numbers(name):
            place = StoreDir(self.root / name / str(number))
            if load_manifest(place) is None:
                place.remove()

    def _write_aliases(self, name: str, aliases: dict[str, int]) -> None:
        StoreDir(self.root / name).write("aliases.json", json.dumps(aliases).encode())


def check_name(name: str) -> None:
    """Raise if a name is not a valid model name."""
    if not NAME.fullmatch(name):
        raise BadInput(f"'{name}' is not a model name", hint="use a-z, 0-9, '.', '_' and '-', at most 63")


def resolve_model(home: Path, reference: str) -> tuple[str, Path, Version | None]:
    """Return the name and directory of a registered model, or of a model directory given by its path."""
    path = Path(reference).expanduser()
    if (path / "config.json").exists():
        return path.resolve().name, path.resolve(), None
    if "/" in reference or reference in (".", ".."):
        raise NotFound(f"{reference}: no model directory: it has no config.json")
    version = Registry(home).find(reference)
    base = version.manifest.meta.get("adapter_of")
    if base:
        raise BadInput(
            f"{version} is an adapter, not a model",
            hint=f"windlass serve {base} --adapter {version.name}={version}",
        )
    return str(version), version.path, version


def resolve_adapter(home: Path, reference: str) -> tuple[Path, Version | None]:
    """Return the directory of a registered adapter, or of one given by its path."""
    path = Path(reference).expanduser()
    if (path / "adapter_config.json").exists():
        return path.resolve(), None
    if "/" in reference or reference in (".", ".."):
        raise NotFound(f"{reference}: no adapter directory: it has no adapter_config.json")
    version = Registry(home).find(reference)
    if not version.manifest.meta.get("adapter_of"):
        raise BadInput(
            f"{version} is a model, not an adapter",
            hint="adapters are registered by models import --adapter-of",
        )
    return version.path, version
