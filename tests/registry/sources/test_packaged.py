"""Packaged models by their short names: found, imported once, and served from the registry afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.registry.sources import packaged
from windlass.registry.sources.import_model import ImportRequest
from windlass.registry.sources.model_source import parse_source
from windlass.registry.sources.packaged import PACKAGED, find_packaged, ready_model
from windlass.registry.versions import Registry, Version
from windlass.spec.errors import NotFound
from windlass.spec.protocol.progress import silent
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[ImportRequest]:
    """Register an empty model for each import, which has tests of its own; return what was requested."""
    seen: list[ImportRequest] = []

    def register(home: Path, request: ImportRequest, report: Any) -> Version:
        seen.append(request)
        made = home / "made"
        shutil.rmtree(made, ignore_errors=True)
        writer = DirectoryWriter(StoreDir(made))
        writer.write("config.json", b"{}")
        writer.commit({})
        origin = {"source": request.source, **({"sha256": request.sha256} if request.sha256 else {})}
        name = request.name or parse_source(request.source).model_name
        return Registry(home).register(name, made, origin=origin)

    monkeypatch.setattr(packaged, "import_model", register)
    return seen


def ready(home: Path, text: str, **options: Any) -> str:
    return str(ready_model(home, text, silent, lambda said: None, **options))


def test_each_packaged_model_has_a_source_and_a_licence() -> None:
    for model in PACKAGED:
        assert parse_source(model.source).file == model.file
        assert len(model.sha256) == 64
        assert model.licence
        assert find_packaged(model.name) is model


def test_a_packaged_model_is_imported_once(tmp_path: Path, imports: list[ImportRequest]) -> None:
    assert [ready(tmp_path, "smollm2") for _ in range(2)] == ["smollm2@1"] * 2
    assert [request.sha256 for request in imports] == [PACKAGED[0].sha256]


def test_a_packaged_model_may_be_given_another_name(tmp_path: Path, imports: list[ImportRequest]) -> None:
    assert [ready(tmp_path, "smollm2", name="tiny") for _ in range(2)] == ["tiny@1"] * 2
    assert len(imports) == 1


def test_a_registered_name_comes_first(tmp_path: Path, imports: list[ImportRequest]) -> None:
    ready(tmp_path, "smollm2")
    ready(tmp_path, "hf:acme/tiny", name="smollm2")
    Registry(tmp_path).promote("smollm2@2")
    assert ready(tmp_path, "smollm2") == "smollm2@2"
    assert ready(tmp_path, "smollm2@1") == "smollm2@1"


def test_a_source_elsewhere_is_imported_once_and_a_directory_every_time(
    tmp_path: Path, imports: list[ImportRequest]
) -> None:
    assert [ready(tmp_path, "hf:acme/Tiny") for _ in range(2)] == ["tiny@1"] * 2
    (tmp_path / "mine").mkdir()
    assert [ready(tmp_path, f"{tmp_path}/mine") for _ in range(2)] == ["mine@1", "mine@2"]


def test_an_unknown_name_gets_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="neither a registered nor a packaged model") as unknown:
        ready(tmp_path, "smollm")
    assert "did you mean 'smollm2'?" in str(unknown.value)


@pytest.mark.slow
def test_the_digest_in_the_table_is_that_of_the_real_file(smollm2_gguf: Path) -> None:

    with smollm2_gguf.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == PACKAGED[0].sha256


@pytest.mark.slow
def test_smollm2_answers_a_question_after_one_command(smollm2_gguf: Path, tmp_path: Path) -> None:
    def up() -> dict[str, Any]:
        command = [sys.executable, "-m", "windlass.cli", "up", "--model", "smollm2", "--once", "--json"]
        done = subprocess.run(
            [*command, "--home", str(tmp_path)], capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    first = up()
    assert (first["model"], first["text"]) == ("smollm2@1", "The capital of France is Paris.")
    assert up()["model"] == "smollm2@1"  # imported once
    assert not list(tmp_path.glob("import-*"))
    assert not list((tmp_path / "cache" / "downloads").glob("*/*"))
