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
