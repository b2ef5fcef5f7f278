"""A model that this gateway serves: its names, its vocabulary, where its answers end.

Input: a model directory with Hugging Face's files. Output: ServedModel, read once at the start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from windlass.serve.gateway.text.templates import (
    ROLE_TOKENS,
    ChatTemplate,
    compile_template,
    default_template,
)
from windlass.serve.gateway.text.tokenise import TextCodec, load_text
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.protocol.routing import RoutedModel

END_TOKEN = "<|end|>"
"""The token that our own tokenizers put between documents."""
LANGUAGE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class ServedModel:
    """Everything about the model that does not change while it is served."""

    id: str
    names: frozenset[str]
    created: int
    text: TextCodec
    template: ChatTemplate
    stop_tokens: tuple[int, ...]
    adapters: tuple[str, ...] = ()
    language: str = ""
    """Equal for models with the same vocabulary and template, so that one can continue the other's answer."""


def load_routed(model: RoutedModel) -> ServedModel:
    """Load a model of the supervisor's routing table."""
    served = load_served(Path(model.folder), model.id, model.names, model.adapters)
    return replace(served, names=frozenset({model.id, *model.names}))


def load_served(
    model: Path, name: str, aliases: Sequence[str] = (), adapters: Sequence[str] = ()
) -> ServedModel:
    """Load what the gateway needs from a model directory."""
    if not model.is_dir():
        raise NotFound(f"{model}: no such model directory")
    text = load_text(model)
    tokenizer_config = _read_json(model / "tokenizer_config.json")
    special = _special_tokens(tokenizer_config)
    config = model / "config.json"
    return ServedModel(
        id=name,
        names=names_of(name, aliases),
        created=int((config if config.exists() else model).stat().st_mtime),
        text=text,
        template=_template(model, tokenizer_config, text, special),
        stop_tokens=_stop_tokens(model, text, special),
        adapters=tuple(adapters),
        language=_language(model),
    )


def names_of(name: str, aliases: Sequence[str]) -> frozenset[str]:
    """Return every name of a model: NAME, NAME@VERSION and NAME@ALIAS."""
    bare = name.partition("@")[0]
    given = {alias if "@" in alias else f"{bare}@{alias}" for alias in aliases}
    return frozenset({name, bare, *given})


def _language(model: Path) -> str:
    """Digest the files that define the vocabulary and the chat template."""
    digest = blake2b(digest_size=16)
    for name in LANGUAGE_FILES:
        path = model / name
        content = path.read_bytes() if path.exists() else b""
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _template(model: Path, config: dict[str, Any], text: TextCodec, special: dict[str, str]) -> ChatTemplate:
    """Find the chat template: its own file, an entry of tokenizer_config.json, or our default."""
    path = model / "chat_template.jinja"
    if path.exists():
        return compile_template(path.read_text("utf-8"), where=str(path), special=special)
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    if isinstance(found, str):
        where = str(model / "tokenizer_config.json")
        return compile_template(found, where=where, special=special)
    return default_template(role_tokens=all(text.token_id(token) is not None for token in ROLE_TOKENS))


def _stop_tokens(model: Path, text: TextCodec, special: dict[str, str]) -> tuple[int, ...]:
    """Collect the tokens that end an answer; the files list them in several places."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        tokens = _read_json(model / name).get("eos_token_id")
        found.update(tokens if isinstance(tokens, list) else [tokens] if isinstance(tokens, int) else [])
    names = [special["eos_token"]] if "eos_token" in special else []
    ids = (text.token_id(token) for token in [*names, END_TOKEN, *ROLE_TOKENS])
    return tuple(sorted(found | {token for token in ids if token is not None}))


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return bos_token, eos_token and so on; each is a text, or an object that holds one."""
    special = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            special[key] = content
    return special


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: must be a JSON object")
    return value
