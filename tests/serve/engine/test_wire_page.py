"""docs/formats/wire.md says what windlass.spec.protocol.wire is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from windlass.spec.protocol.wire import MAX_FRAME_BYTES, FromEngine, Generate, ToEngine

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "wire.md"
MESSAGES = [*get_args(ToEngine), *get_args(FromEngine)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
def test_every_message_and_each_of_its_fields_is_described(message: type[msgspec.Struct]) -> None:
    (description,) = re.findall(
        rf"^\*\*{message.__struct_config__.tag}\*\*:(.*?)(?=^\*\*|^## |\Z)", PAGE.read_text(), re.M | re.S
    )
    named = set(re.findall(r"`(\w+)`", description))
    assert [name for name in message.__struct_fields__ if name not in named] == []


def test_every_default_of_generate_is_the_one_described() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]+\|([^|]*)\|[^|]+\|$", PAGE.read_text(), re.M))
    for field in msgspec.structs.fields(Generate):
        made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        shown = '""' if made == "" else str(made).lower()
        assert rows[field.name].strip() == ("" if field.required else shown), field.name


def test_the_limit_of_a_frame_is_the_one_described() -> None:
    assert f"at most {MAX_FRAME_BYTES:,}" in PAGE.read_text()


def test_every_code_of_a_failure_is_described() -> None:
    serve = Path(__file__).parents[3] / "src" / "windlass" / "serve"
    source = "".join(path.read_text() for room in ("engine", "vllm") for path in (serve / room).glob("*.py"))
    kinds = r'"(bad_\w+|not_[aeg]\w+|unknown_\w+|\w+_exceeded|\w+_failed|duplicate_id|gave_up)"'
    codes = set(re.findall(kinds, source))
    assert codes == set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE.read_text(), re.M))
