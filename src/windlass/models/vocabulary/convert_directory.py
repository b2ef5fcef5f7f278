"""Gives a model directory the tokenizer.json that it lacks, out of tokenizer.model or a tiktoken file.

Input: a Hugging Face directory without tokenizer.json. Output: the text of one, or None if there is nothing
to make it of. Special tokens come from tokenizer_config.json, as transformers reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.models.vocabulary.scored_pieces import bpe_tokenizer, unigram_tokenizer
from windlass.models.vocabulary.sentencepiece_model import BPE, read_sentencepiece
from windlass.models.vocabulary.special_tokens import added_token, added_tokens, surrounding
from windlass.models.vocabulary.tiktoken_file import PATTERNS, is_tiktoken, tiktoken_tokenizer
from windlass.spec.errors import BadInput

NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def converted_tokenizer(source: Path, config: Mapping[str, Any]) -> bytes | None:
    """Return tokenizer.json; `config` is the model's config.json."""
    if (source / "tokenizer.json").exists():
        return None
    path = next((source / name for name in NAMES if (source / name).is_file()), None)
    path = path or next(iter(sorted(source.glob("*.tiktoken"))), None)
    if path is None:
        return None
    data, settings = path.read_bytes(), _settings(source)
    if is_tiktoken(data):
        tokenizer = tiktoken_tokenizer(data, _pattern(path, config), str(path))
        begins = False
    else:
        tokenizer, begins = _sentencepiece(data, str(path))
    ids = dict(tokenizer["model"]["vocab"]) if isinstance(tokenizer["model"]["vocab"], dict) else {}
    ids = ids or {token: number for number, (token, _) in enumerate(tokenizer["model"]["vocab"])}
    _add_stated(tokenizer, settings, ids)
    _surround(tokenizer, settings, ids, begins=begins)
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode()


def _settings(source: Path) -> dict[str, Any]:
    path = source / "tokenizer_config.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _pattern(path: Path, config: Mapping[str, Any]) -> str:
    name = f"{path.stem} {config.get('model_type', '')}".lower()
    found = next((pre for part, pre in PATTERNS.items() if part in name), None)
    if found is None:
        raise BadInput(
            f"{path}: a tiktoken file does not say where it cuts a text, and its name is not known",
            hint=f"known: {', '.join(PATTERNS)}; or add the model's tokenizer.json",
        )
    return found


def _sentencepiece(data: bytes, where: str) -> tuple[dict[str, Any], bool]:
    model = read_sentencepiece(data, where)
    make = bpe_tokenizer if model.algorithm == BPE else unigram_tokenizer
    tokenizer = make(model.pieces())
    tokenizer["added_tokens"] = added_tokens(model.tokens, model.kinds)
    return tokenizer, model.algorithm == BPE


def _add_stated(tokenizer: dict[str, Any], settings: Mapping[str, Any], ids: dict[str, int]) -> None:
    """Add the tokens of `added_tokens_decoder` that the vocabulary file does not have as such."""
    present = {added["id"] for added in tokenizer["added_tokens"]}
    for number, token in (settings.get("added_tokens_decoder") or {}).items():
        if int(number) not in present:
            special = bool(token.get("special", False))
            tokenizer["added_tokens"].append(added_token(int(number), token["content"], special=special))
        ids.setdefault(token["content"], int(number))
    tokenizer["added_tokens"].sort(key=lambda added: int(added["id"]))


def _surround(
    tokenizer: dict[str, Any], settings: Mapping[str, Any], ids: Mapping[str, int], *, begins: bool
) -> None:
    """Put bos and eos around a text where the configuration says so; BPE of llama begins with bos."""

    def named(name: str, default: str, *, wanted: bool) -> tuple[str, int] | None:
        token = settings.get(f"{name}_token") or default
        token = str(token.get("content") if isinstance(token, Mapping) else token)
        wanted = bool(settings.get(f"add_{name}_token", wanted))
        return (token, ids[token]) if wanted and isinstance(token, str) and token in ids else None

    first, last = named("bos", "<s>", wanted=begins), named("eos", "</s>", wanted=False)
    if first or last:
        tokenizer["post_processor"] = surrounding(first, last)
