"""What a server of this version says of itself, the models of an imagined one, and our own verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass.cli.complete.server_schema import own_document
from windlass.cli.complete.verbs import describe_verb
from windlass.cli.main import VERBS
from windlass.completion.cli_text import Verbs
from windlass.completion.complete import complete, names_of
from windlass.completion.from_cli import complete_cli
from windlass.completion.kinds import CLI, kind_of
from windlass.completion.suggestions import Suggestions

MODELS = names_of(["poems@2", "poems@2:poet", "essays@1"])
NAMES = {
    "MODEL": ["poems", "essays", "poems@2", "poems@1", "poems@prod", "essays@1"],
    "JOB.toml": ["poems.toml", "essays.toml", "recipes/"],
    "RUN": ["poems", "essays"],
}
TOLD = ("serve", "models", "plan", "train", "jobs", "completion")
"""Verbs that the tests type; to describe one, its modules are loaded."""
MARK = "¦"

Completing = Callable[..., Suggestions]


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    return own_document()


@pytest.fixture(scope="session")
def verbs() -> Verbs:
    told = {verb: Verbs.from_json(describe_verb(verb)) for verb in TOLD}
    return Verbs("", (), (), {verb: Verbs(purpose) for verb, purpose in VERBS.items()} | told)


@pytest.fixture(scope="session")
def offer_for(document: dict[str, Any], verbs: Verbs) -> Completing:
    """Complete a text whose cursor is marked, or stands at the end."""

    def offer(text: str, **settings: Any) -> Suggestions:
        bare = text.replace(MARK, "")
        cursor = text.index(MARK) if MARK in text else None
        if kind_of(bare) == CLI and "kind" not in settings:
            return complete_cli(bare, cursor, verbs=verbs, names=NAMES)
        return complete(bare, cursor, document=document, models=MODELS, **settings)

    return offer
