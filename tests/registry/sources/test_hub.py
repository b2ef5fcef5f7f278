"""Models from both hubs, through their real client libraries, over HTTP on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.registry.sources.hub import fetch_model, open_repository
from windlass.registry.sources.model_source import parse_source
from windlass.spec.errors import BadInput, Damaged, NotFound, StoreFailed
from windlass.spec.protocol.progress import Progress, silent

BIG = bytes(range(256)) * 256
KINDS = ("hf", "ms")
REPO = "acme/tiny-chat"
EXTRAS = {
    "README.md": b"# tiny",
    "modeling_tiny.py": b"raise SystemExit(9)",
    "pytorch_model.bin": b"pickle",
    "model.onnx": b"graph",
    "original/consolidated.safetensors": b"twice",
}
Fetch = Callable[..., Path]


@pytest.fixture
def fetch(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """Fetch a model as `models import` does, without the conversion."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    # The client keeps what it has of a broken transfer chunk by chunk, and its chunks are 10 MB.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    for variable in ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HF_HOME", "MODELSCOPE_CACHE", "MODELSCOPE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "libraries"))

    def run(source: str, report: Any = silent) -> Path:
        address = parse_source(source)
        return fetch_model(open_repository(address), address, tmp_path / "fetched", report)

    return run


def files_below(folder: Path) -> dict[str, bytes]:
    """The files that an import reads; client libraries keep records in hidden directories."""
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    return {name: content for name, content in named.items() if not name.startswith(".")}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_files_of_the_model_are_fetched(
    kind: str, hub: Any, fetch: Fetch, model_files: dict[str, bytes]
) -> None:
    hub.repositories[REPO] = {**model_files, **EXTRAS}
    assert files_below(fetch(f"{kind}:{REPO}")) == model_files
    assert set(hub.fetched()) == set(model_files)


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_decides_which_shards_are_fetched(kind: str, hub: Any, fetch: Fetch) -> None:
    shards = {f"part-{i}.safetensors": bytes([i]) * 5000 for i in range(3)}
    index = {"weight_map": {"a": "part-0.safetensors", "b": "part-2.safetensors"}}
    hub.repositories[REPO] = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        **shards,
    }
    assert set(files_below(fetch(f"{kind}:{REPO}"))) == {
        "config.json", "model.safetensors.index.json", "part-0.safetensors", "part-2.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_pooling_of_a_sentence_encoder_is_fetched(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {
        "config.json": b"{}",
        "model.safetensors": BIG,
        "modules.json": b"[]",
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
        "onnx/config.json": b"{}",
    }
    assert set(files_below(fetch(f"{kind}:{REPO}"))) == {
        "config.json", "model.safetensors", "modules.json", "1_Pooling/config.json",
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_one_file_of_several_gguf_files_is_chosen_by_name(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"tiny-Q4_K.gguf": BIG, "tiny-Q8_0.gguf": BIG[::-1], "README.md": b""}
    with pytest.raises(BadInput, match=r"has several models: tiny-Q4_K\.gguf, tiny-Q8_0\.gguf"):
        fetch(f"{kind}:{REPO}")
    assert fetch(f"{kind}:{REPO}:tiny-Q8_0.gguf").read_bytes() == BIG[::-1]
    with pytest.raises(NotFound, match="no file tiny-Q5_K"):
        fetch(f"{kind}:{REPO}:tiny-Q5_K.gguf")


def test_all_parts_of_a_split_gguf_file_are_fetched(hub: Any, fetch: Fetch) -> None:
    names = [f"q8/tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repositories[REPO] = {name: name.encode() for name in names}
    assert fetch(f"hf:{REPO}").name == "tiny-00001-of-00003.gguf"
    assert sorted(hub.fetched()) == names


@pytest.mark.parametrize("kind", KINDS)
def test_a_transfer_that_broke_is_resumed_where_it_stopped(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    hub.cut["model.safetensors"] = [40_960]
    assert files_below(fetch(f"{kind}:{REPO}"))["model.safetensors"] == BIG
    assert hub.ranges("model.safetensors") == ["", "bytes=40960-"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_command_resumes_what_the_library_gave_up(
    kind: str, hub: Any, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 0)
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    hub.cut["model.safetensors"] = [40_960, 0, 0, 0, 0, 0] if kind == "hf" else [40_960]
    with pytest.raises(StoreFailed, match="cannot be reached"):
        fetch(f"{kind}:{REPO}")
    hub.requests.clear()
    assert files_below(fetch(f"{kind}:{REPO}"))["model.safetensors"] == BIG
    assert hub.ranges("model.safetensors") == ["bytes=40960-"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_differs_from_the_list_is_removed_and_fetched_anew(
    kind: str, hub: Any, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "ms":  # its library waits between three attempts of its own
        monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_INTEGRITY_RETRY_BACKOFF", 0.01)
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    hub.listed["model.safetensors"] = BIG[::-1]
    with pytest.raises(Damaged):
        fetch(f"{kind}:{REPO}")
    assert "model.safetensors" not in files_below(tmp_path / "fetched")
    hub.listed.clear()
    assert files_below(fetch(f"{kind}:{REPO}"))["model.safetensors"] == BIG


def test_a_small_file_is_checked_by_the_digest_of_git(hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    hub.listed["config.json"] = b"[]"
    with pytest.raises(Damaged, match=r"config\.json: the file has another git digest"):
        fetch(f"hf:{REPO}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_whole_is_not_fetched_again(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    fetch(f"{kind}:{REPO}")
    hub.requests.clear()
    fetch(f"{kind}:{REPO}")
    assert hub.fetched() == []


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_are_refused_before_they_are_fetched(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}", "pytorch_model.bin": BIG}
    with pytest.raises(BadInput, match="pickle") as refused:
        fetch(f"{kind}:{REPO}")
    assert "save_pretrained" in str(refused.value)
    assert "pytorch_model.bin" not in hub.fetched()


@pytest.mark.parametrize("kind", KINDS)
def test_a_repository_that_is_not_there_says_so(kind: str, hub: Any, fetch: Fetch) -> None:
    with pytest.raises(NotFound, match="no such repository") as missing:
        fetch(f"{kind}:{REPO}")
    assert hub.url in str(missing.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_revision_that_is_not_there_says_so(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}"}
    with pytest.raises(NotFound, match="'v9'"):
        fetch(f"{kind}:{REPO}@v9")


@pytest.mark.parametrize(("kind", "variable"), [("hf", "HF_ENDPOINT"), ("ms", "MODELSCOPE_ENDPOINT")])
def test_without_a_network_the_error_says_what_was_tried_and_what_to_do(
    kind: str, variable: str, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv(variable, url)
    if kind == "ms":
        monkeypatch.setattr("modelscope_hub._legacy_api.REPO_TREE_PAGE_MAX_ATTEMPTS", 1)
    with pytest.raises(StoreFailed) as failed:
        fetch(f"{kind}:{REPO}")
    for part in (f"tried GET {url}/api/", f"setting {variable}=", "windlass models import DIRECTORY"):
        assert part in str(failed.value)


def test_the_offline_mode_of_the_library_is_kept(
    hub: Any, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StoreFailed, match="the hub cannot be reached"):
        fetch(f"hf:{REPO}")
    assert hub.requests == []


def test_a_missing_client_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "windlass.registry.sources.on_huggingface", raising=False)
    with pytest.raises(BadInput, match=r"huggingface_hub, is not installed") as missing:
        open_repository(parse_source("hf:acme/tiny"))
    assert "windlass[hub]" in str(missing.value)


def test_a_list_that_would_write_elsewhere_is_refused(hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"../config.json": b"{}", "model.safetensors": BIG}
    with pytest.raises(BadInput, match="its list of files"):
        fetch(f"hf:{REPO}")


@pytest.mark.parametrize("kind", KINDS)
def test_progress_ends_at_all_bytes(kind: str, hub: Any, fetch: Fetch) -> None:
    hub.repositories[REPO] = {"config.json": b"{}", "model.safetensors": BIG}
    seen: list[Progress] = []
    fetch(f"{kind}:{REPO}", seen.append)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total) == ("download", len(BIG), len(BIG))
