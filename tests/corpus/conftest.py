"""Texts in two languages, and the way to the shared ones when they are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline would be an assertion on time, and machines are shared.
settings.register_profile("corpus", deadline=None)
settings.load_profile("corpus")

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

ENGLISH = (
    "It was a bright day and the windlass turned.\nThe rope came up, hand over hand, out of the well.\n\n"
    "Nobody knew how deep it was; nobody had asked.\nWe don't count the turns: 1, 2, 3, 1024 of them.\n"
)
CHINESE = (
    "明月几时有？把酒问青天。\n不知天上宫阙，今夕是何年。\n我欲乘风归去，又恐琼楼玉宇，高处不胜寒。\n"
    "起舞弄清影，何似在人间。\n转朱阁，低绮户，照无眠。\n"
)


@pytest.fixture
def shakespeare() -> Path:
    return _shared("tinyshakespeare.txt")


@pytest.fixture
def poems() -> Path:
    return _shared("song-ci.jsonl")


def _shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"needs {name} of the shared data, which is not on this machine")
    return SHARED / name


@pytest.fixture
def english() -> str:
    return ENGLISH


@pytest.fixture
def chinese() -> str:
    return CHINESE
