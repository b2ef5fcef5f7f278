"""From the words of `windlass serve` to what is served."""

from pathlib import Path

import pytest

from windlass.cli.serve import offer_of, read_adapter
from windlass.operate.registry import Registry, resolve_adapter
from windlass.spec.errors import BadInput, InUse, NotFound
from windlass.spec.serve import Serve
from windlass.store.manifest import DirectoryWriter
from windlass.store.place import Place


def register(home: Path, name: str, **meta: str) -> None:
    source = home / "made" / name
    writer = DirectoryWriter(Place(source))
    writer.write("adapter_config.json" if meta else "config.json", b"{}")
    writer.commit(meta)
    Registry(home).register(name, source)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    register(tmp_path, "base")
    register(tmp_path, "other")
    register(tmp_path, "poet", adapter_of="base@1")
    return tmp_path


def test_models_and_adapters_are_found_by_version(home: Path) -> None:
    adapters = ["poet=poet@1", "other:bard=poet"]
    offer, versions = offer_of(home, ["base", "other@1"], adapters, Serve())
    assert [item.name for item in offer.items] == ["base@1", "other@1"]
    assert offer.items[0].adapters == {"poet": home / "models/poet/1"}
    assert offer.items[1].adapters == {"bard": home / "models/poet/1"}
    assert [str(version) for version in versions] == ["base@1", "other@1", "poet@1", "poet@1"]


def test_the_same_model_twice_is_refused(home: Path) -> None:
    with pytest.raises(InUse, match="base@1"):
        offer_of(home, ["base", "base@1"], [], Serve())


def test_an_adapter_is_no_model_and_a_model_no_adapter(home: Path) -> None:
    with pytest.raises(BadInput, match="is an adapter") as raised:
        offer_of(home, ["poet"], [], Serve())
    assert raised.value.hint == "windlass serve base@1 --adapter poet=poet@1"
    with pytest.raises(BadInput, match="is a model"):
        resolve_adapter(home, "other")
    with pytest.raises(NotFound, match="adapter_config"):
        resolve_adapter(home, "./nowhere")


@pytest.mark.parametrize("text", ["poet", "=poet", "poet=", "a b=poet", "base:=poet"])
def test_what_is_no_adapter_option_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="NAME=ADAPTER"):
        read_adapter(text, ["base"])


def test_an_adapter_of_a_model_that_is_not_served_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput) as raised:
        read_adapter("basse:poet=poet", ["base@1"])
    assert raised.value.hint == "did you mean 'base@1'?"


def test_the_same_adapter_name_twice_is_refused(home: Path) -> None:
    with pytest.raises(InUse, match="already"):
        offer_of(home, ["base"], ["poet=poet", "base:poet=poet@1"], Serve())
