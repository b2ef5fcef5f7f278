"""Names that a stranger can read: tools/names finds none that it should not."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAX_BANNED = 0
"""Identifiers with words of our own; `ALLOWED` in tools/names has the exceptions."""


@pytest.fixture(scope="module")
def names() -> ModuleType:
    """tools/names as a module."""
    loader = SourceFileLoader("names", str(ROOT / "tools" / "names"))
    spec = spec_from_loader("names", loader)
    assert spec is not None
    module = sys.modules["names"] = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(names: ModuleType) -> Any:
    return names.look_through(ROOT / "src" / "windlass")


def test_a_public_class_name_occurs_once(found: Any) -> None:
    assert found.duplicates == []


def test_no_package_has_too_many_modules(names: ModuleType, found: Any) -> None:
    assert {name: n for name, n in found.packages.items() if n > names.MAX_MODULES} == {}


def test_a_package_names_all_its_modules(found: Any) -> None:
    assert found.unnamed == []


def test_the_harness_is_in_the_lab(found: Any) -> None:
    assert found.harness == {}


def test_identifiers_use_the_words_of_the_field(found: Any) -> None:
    assert len(found.identifiers) <= MAX_BANNED, "\n".join(found.identifiers)


def test_docstrings_name_the_actor(found: Any) -> None:
    assert found.docstrings == []


def test_banned_words_are_found_in_every_style_of_name(names: ModuleType) -> None:
    text = "what_was_told = HttpDoor(MOST_BYTES).asked\nmosty = retold = 1\n"
    assert [name for _, name in names.banned_identifiers(text)] == [
        "what_was_told", "HttpDoor", "MOST_BYTES", "asked",
    ]  # fmt: skip


def test_documentation_and_texts_of_the_page_use_plain_words(names: ModuleType) -> None:
    assert names.banned_in_texts(ROOT) == []


def test_names_of_tests_use_plain_words(names: ModuleType) -> None:
    assert names.banned_test_names(ROOT / "tests") == []


def test_banned_words_are_found_in_prose_and_not_in_code(names: ModuleType) -> None:
    text = "Whoever asks is\ntold so, beside `nobody` and `is told`.\nIt goes on."
    assert list(names.banned_words(text)) == [(1, "Whoever"), (1, "is told"), (2, "beside"), (3, "goes on")]


def test_old_names_of_modules_are_found_in_backticks(names: ModuleType) -> None:
    old = names.old_modules(ROOT)
    assert "cluster.attend" in old
    text = "See `windlass.cluster.attend`,\n`cluster.launch` and the table `[corpus.cache]`."
    assert list(names.old_names(text, old)) == [(1, "cluster.attend")]


def test_the_checked_texts_are_pages_words_of_the_web_page_and_errors(names: ModuleType) -> None:
    paths = {str(path.relative_to(ROOT)) for path in names.texts_of(ROOT)}
    assert {"README.md", "docs/log.md", "docs/formats/wire.md", "src/windlass/http/codes.toml"} <= paths
    assert "src/windlass/serve/page/play-words.js" in paths
    assert not any(path.startswith("docs/reference/") for path in paths)
