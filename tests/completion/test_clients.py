"""The tables of Python clients are true: one that falls behind would offer what they refuse."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions
from openai.resources.embeddings import Embeddings

from windlass.completion.fill import Filler
from windlass.completion.python_text import NOT_OPENAI, OPENAI, OPENAI_OWN, SDK, SDK_OWN, SDK_SETTINGS
from windlass.completion.schema import ApiDocument
from windlass.sdk import Client
from windlass.sdk.messages import SamplingSettings


def test_the_settings_of_our_client_are_known() -> None:
    assert set(SamplingSettings.__annotations__) == SDK_SETTINGS


@pytest.mark.parametrize("method", list(SDK))
def test_the_first_argument_of_our_client_is_known(method: str) -> None:
    names = [
        name for name in inspect.signature(getattr(Client, method)).parameters if name not in ("self", "face")
    ]
    assert names[0] == SDK[method][1]
    assert not set(names[1:]) - SDK_OWN - SDK_SETTINGS - {"settings", "turns"}


@pytest.mark.parametrize(("path", "owner"), [*zip(OPENAI, [Chat, Completions, Embeddings], strict=True)])
def test_what_openais_client_takes_is_known(document: dict[str, Any], path: str, owner: Any) -> None:
    api = ApiDocument(document)
    operation = api.find(path, "POST")
    assert operation is not None
    assert operation.body is not None
    taken = set(inspect.signature(owner.create).parameters)
    useful = {field.name for field in api.fields(operation.body) if field.is_useful}
    assert useful - taken <= NOT_OPENAI[path]
    assert not taken & NOT_OPENAI[path]
    assert taken >= OPENAI_OWN
    assert Filler(api, ["poems"]).missing(operation.body, [])[0].name == "model"
