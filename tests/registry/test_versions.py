import json
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windlass.registry.versions import Registry, resolve_model
from windlass.spec.errors import AskedWrongly, BadInput, Damaged, InUse, NotFound
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


def model(folder: Path, content: bytes = b"weights") -> Path:
    writer = DirectoryWriter(StoreDir(folder))
    writer.write("model.safetensors", content)
    writer.write("config.json", b"{}")
    writer.write("windlass.json", json.dumps({"parameters": 5, "corpus_digest": "abc"}).encode())
    writer.commit({"kind": "model"})
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "home")


def test_versions_count_up_and_keep_their_lineage(registry: Registry, tmp_path: Path) -> None:
    first = registry.register("m", model(tmp_path / "a"))
    second = registry.register("m", model(tmp_path / "b", b"other"))
    assert [str(first), str(second)] == ["m@1", "m@2"]
    assert first.lineage == {"parameters": 5, "corpus_digest": "abc"}
    assert first.manifest.digest != second.manifest.digest
    assert registry.names() == ["m"]


def test_a_bare_name_is_prod_or_else_the_newest(registry: Registry, tmp_path: Path) -> None:
    for _ in range(3):
        registry.register("m", model(tmp_path / "a"))
    assert registry.find("m").number == 3
    registry.promote("m@2")
    assert registry.find("m").number == 2
    assert registry.find("m@latest").number == 3


def test_rolling_back_swaps_prod_and_previous(registry: Registry, tmp_path: Path) -> None:
    for _ in range(2):
        registry.register("m", model(tmp_path / "a"))
    registry.promote("m@1")
    with pytest.raises(AskedWrongly, match="no @previous"):
        registry.roll_back("m")
    registry.promote("m@2")
    assert registry.find("m@previous").number == 1
    assert registry.roll_back("m").number == 1
    assert registry.roll_back("m").number == 2


def test_what_is_in_use_is_not_deleted(registry: Registry, tmp_path: Path) -> None:
    for _ in range(3):
        registry.register("m", model(tmp_path / "a"))
    registry.promote("m@1")
    with pytest.raises(InUse, match="@prod"):
        registry.delete("m@1")
    with registry.holding(registry.find("m@2")), pytest.raises(InUse, match="m@2 is in use"):
        registry.delete("m@2")
    registry.delete("m@2")
    with pytest.raises(NotFound, match="versions: 1, 3"):
        registry.find("m@2")
    with pytest.raises(AskedWrongly, match="names no version"):
        registry.delete("m")


def test_a_deleted_number_is_not_given_again(registry: Registry, tmp_path: Path) -> None:
    for _ in range(2):
        registry.register("m", model(tmp_path / "a"))
    registry.delete("m@2")
    assert registry.register("m", model(tmp_path / "a")).number == 3


def test_names_that_do_not_exist_get_the_nearest(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing is registered yet"):
        registry.find("shakespeare")
    registry.register("shakespeare", model(tmp_path / "a"))
    with pytest.raises(NotFound, match="did you mean 'shakespeare'"):
        registry.find("shakespaere")
    with pytest.raises(NotFound, match="no alias @prod"):
        registry.find("shakespeare@prod")


def test_a_bad_name_is_refused(registry: Registry, tmp_path: Path) -> None:
    for name in ("", "../up", "Big", "a b", "x" * 64, ".hidden"):
        with pytest.raises(BadInput, match="not a model name"):
            registry.register(name, model(tmp_path / "a"))


def test_a_damaged_source_is_not_registered(registry: Registry, tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    (source / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(Damaged):
        registry.register("m", source)
    assert registry.versions("m") == []


def test_half_a_version_is_no_version_and_is_swept(registry: Registry, tmp_path: Path) -> None:
    registry.register("m", model(tmp_path / "a"))
    debris = registry.root / "m" / "2"
    debris.mkdir()
    (debris / "model.safetensors").write_bytes(b"half of it")
    assert [v.number for v in registry.versions("m")] == [1]
    registry.register("m", model(tmp_path / "a"))
    assert [v.number for v in registry.versions("m")] == [1, 2]


def test_a_model_may_be_given_by_its_directory(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    assert resolve_model(tmp_path / "home", str(folder)) == ("a", folder, None)
    with pytest.raises(NotFound, match=r"no config\.json"):
        resolve_model(tmp_path / "home", str(tmp_path / "absent"))


class RegistryMachine(RuleBasedStateMachine):
    """Any sequence of operations: versions are immutable, aliases always name a version that exists."""

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.registry = Registry(Path(self.folder.name) / "home")
        self.digests: dict[int, str] = {}
        self.given = 0

    @rule(content=st.binary(max_size=8))
    def register(self, content: bytes) -> None:
        version = self.registry.register("m", model(Path(self.folder.name) / "source", content))
        self.given += 1
        assert version.number == self.given
        self.digests[version.number] = version.manifest.digest

    @precondition(lambda self: self.digests)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.digests)))
        self.registry.promote(f"m@{number}")
        assert self.registry.find("m").number == number

    @precondition(lambda self: self.digests)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.digests)))
        if number in self.registry.aliases("m").values():
            with pytest.raises(InUse):
                self.registry.delete(f"m@{number}")
        else:
            self.registry.delete(f"m@{number}")
            del self.digests[number]

    @precondition(lambda self: "previous" in self.registry.aliases("m"))
    @rule()
    def roll_back(self) -> None:
        before = self.registry.aliases("m")
        self.registry.roll_back("m")
        after = self.registry.aliases("m")
        assert (after["prod"], after["previous"]) == (before["previous"], before["prod"])

    @invariant()
    def versions_never_change(self) -> None:
        assert {v.number: v.manifest.digest for v in self.registry.versions("m")} == self.digests
        assert set(self.registry.aliases("m").values()) <= set(self.digests)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestRegistryMachine = RegistryMachine.TestCase
TestRegistryMachine.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
