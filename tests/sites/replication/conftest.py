"""A home with versions, a depot, and sites to bring them to."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.registry.versions import Registry
from windlass.sites.replication import publish, puller
from windlass.sites.replication.artifact_store import open_depot
from windlass.sites.replication.publish import Published, Publisher
from windlass.sites.replication.puller import Brought, Puller
from windlass.spec.sites import Replicate
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

PIECE_BYTES = 1000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces in little time; and nobody pulls the plug here."""
    monkeypatch.setattr(publish, "CHUNK_BYTES", PIECE_BYTES)
    monkeypatch.setattr("windlass.backup.uploader.CHUNK_BYTES", PIECE_BYTES)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(puller, "TELL_EVERY_S", 0.0)


class Net:
    """A home, its depot, and any number of sites, below one folder."""

    def __init__(self, folder: Path, url: str | None = None, **rule: object) -> None:
        self.folder, self.home = folder, folder / "home"
        self.rule = Replicate(depot=url or str(folder / "depot"), parallel=1, **rule)  # type: ignore[arg-type]

    def register(self, name: str = "poems", size: int = 3500, *, promote: bool = False) -> int:
        source = self.folder / secrets.token_hex(4)
        writer = DirectoryWriter(StoreDir(source))
        writer.write("config.json", b"{}")
        writer.write("model.safetensors", secrets.token_bytes(size))
        writer.commit({"kind": "test"})
        version = Registry(self.home).register(name, source)
        if promote:
            Registry(self.home).promote(str(version))
        return version.number

    def publish(self) -> Published:
        return Publisher(self.home, open_depot(self.rule.depot, create=True), self.rule).step()

    def bring(self, site: str = "east") -> Brought:
        return Puller(self.folder / site, open_depot(self.rule.depot), site, self.rule).step()

    def has(self, where: str = "home") -> dict[str, str]:
        """Every whole version of a registry, with its digest."""
        registry = Registry(self.folder / where)
        return {str(v): v.manifest.digest for name in registry.names() for v in registry.versions(name)}


@pytest.fixture
def new_net() -> Callable[..., Net]:
    """Make one below a folder; with a URL for its depot, and with keys of [replicate]."""
    return Net


@pytest.fixture
def net(tmp_path: Path) -> Net:
    """Two versions of poems, the first of them @prod."""
    net = Net(tmp_path)
    net.register(promote=True)
    net.register()
    return net
