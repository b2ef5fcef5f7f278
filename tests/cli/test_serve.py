"""From the words of `windlass serve` to what is served."""

import argparse
from pathlib import Path

import pytest

from windlass.cli.serving.first_key import first_key, show_key
from windlass.cli.serving.serve import check_port, configure, offer_of, read_adapter, serve_of
from windlass.http.listener import bind
from windlass.registry.versions import Registry, resolve_adapter
from windlass.spec.errors import AskedWrongly, BadInput, InUse, NotFound
from windlass.spec.serve import Serve
from windlass.store.database import sqlite_url
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


def register(home: Path, name: str, **meta: str) -> None:
    source = home / "made" / name
    writer = DirectoryWriter(StoreDir(source))
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


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["base", *words])


def test_options_win_over_the_job_file_and_its_other_tables_do_not_matter(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[train]\nsteps = 5\n[serve]\nport = 9000\nslots = 3\norigins = ["https://a.example"]\n')
    changes = ["--set", "serve.transport.idle_s=30", "--port", "0"]
    serve = serve_of(options("--job", str(job), *changes), tmp_path)
    assert (serve.port, serve.slots, serve.transport.idle_s) == (0, 3, 30)
    assert serve.origins == ("https://a.example",)
    assert serve.state == sqlite_url(tmp_path / "service.db")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "train.steps=5"], r"only settings of \[serve\]"),
        (["--set", "serve.transport.idle=5"], "idle"),
        (["--no-keys", "--host", "0.0.0.0"], "listen on 127.0.0.1"),
        (["--no-keys", "--host", "machine.example"], "listen on 127.0.0.1"),
        (["--gateways", "0"], "gateways"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, words: list[str], told: str) -> None:
    with pytest.raises(AskedWrongly, match=told):
        serve_of(options(*words), tmp_path)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("serve = 5\n")
    with pytest.raises(AskedWrongly):
        serve_of(options("--job", str(job)), tmp_path)


def test_the_first_key_is_shown_once_with_a_request_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = Serve(state=sqlite_url(tmp_path / "service.db"))
    key = first_key(serve)
    assert key is not None
    assert first_key(serve) is None
    show_key(key, "http://127.0.0.1:8000", "base@1")
    told = capsys.readouterr().out
    assert f"export WINDLASS_KEY={key}\n" in told
    assert 'curl http://127.0.0.1:8000/v1/completions -H "Authorization: Bearer $WINDLASS_KEY"' in told
    assert first_key(Serve(open=True)) is None
    show_key(None, "http://127.0.0.1:8000", "base@1")
    assert capsys.readouterr().out == ""


def test_a_port_that_gateways_of_another_service_share_is_in_use() -> None:
    with bind("127.0.0.1", 0, shared=True) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InUse, match=str(port)):
            check_port(Serve(port=port, gateways=2))
    check_port(Serve(port=0))


def test_a_service_can_do_without_a_control_process(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[serve]\ncontrol = false\n")
    assert serve_of(options(), tmp_path).control
    assert not serve_of(options("--no-control"), tmp_path).control
    assert not serve_of(options("--job", str(job)), tmp_path).control
