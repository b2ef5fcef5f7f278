"""The tokenizer of a model directory to the `tokenizer.*` metadata of a GGUF file.

Input: tokenizer.json, tokenizer_config.json and the template of a directory. A tokenizer that llama.cpp
cannot compute is refused: GGUF stores only the name of a pre-tokenizer, so it must be one of the known ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windlass.models.gguf.tokenizer_files import GENERATION, ROLES, TOKENIZER, TOKENIZER_CONFIG
from windlass.models.vocabulary.pretokenizers import PRE_TOKENIZERS, pre_tokenizer_of
from windlass.models.vocabulary.special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from windlass.spec.errors import BadInput

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
UNSCORED = -1e6
"""The score of pieces that no merge makes."""
Tokenizer = Mapping[str, Any]


def vocabulary_metadata(source: Path, rows: int, pre: str | None = None) -> dict[str, Any]:
    """Return the metadata; a directory without a tokenizer gets a file without one.

    `pre` names the pre-tokenizer to state where the model's own has no name, although some texts are then
    cut in other places.
    """
    path = source / TOKENIZER
    if not path.exists():
        return {"tokenizer.ggml.model": "none"}
    tokenizer, where = json.loads(path.read_bytes()), str(path)
    config = _read(source / TOKENIZER_CONFIG)
    if tokenizer["model"].get("type", "BPE") != "BPE":
        raise BadInput(
            f"{where}: a tokenizer of type {tokenizer['model']['type']} cannot be written as GGUF",
            hint="BPE is supported",
        )
    tokens, kinds = _tokens(tokenizer, rows, where)
    ids = {token: number for number, token in enumerate(tokens)}
    found: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    found |= (
        _byte_level(tokenizer, where, pre) if not _is_sentencepiece(tokenizer) else _scored(tokenizer, ids)
    )
    found["tokenizer.ggml.token_type"] = np.array(kinds, np.int32)
    for key, name in ROLES.items():
        number = _special_id(source, config, name, ids)
        if number is not None:
            found[f"tokenizer.ggml.{key}_token_id"] = number
    around = _around(tokenizer)
    found |= {"tokenizer.ggml.add_bos_token": around[0], "tokenizer.ggml.add_eos_token": around[1]}
    template = _template(source, config)
    return found | ({} if template is None else {"tokenizer.chat_template": template})


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.exists() else {}


def _tokens(tokenizer: Tokenizer, rows: int, where: str) -> tuple[list[str], list[int]]:
    """Return every token and its type; rows of the embedding without a token get a name of their own."""
    tokens, kinds = [f"[PAD{number}]" for number in range(rows)], [UNUSED] * rows
    vocabulary = tokenizer["model"]["vocab"]
    for token, number in vocabulary.items():
        if number >= rows:
            raise BadInput(f"{where}: token {number} is beyond the {rows} rows of the embedding")
        tokens[number], kinds[number] = token, BYTE if BYTE_TOKEN.fullmatch(token) else NORMAL
    if not tokenizer["model"].get("byte_fallback"):
        kinds = [NORMAL if kind == BYTE else kind for kind in kinds]
    unknown = tokenizer["model"].get("unk_token")
    for added in tokenizer.get("added_tokens", ()):
        if added["id"] >= rows:
            raise BadInput(f"{where}: token {added['id']} is beyond the {rows} rows of the embedding")
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if unknown in vocabulary:
        kinds[vocabulary[unknown]] = UNKNOWN
    return tokens, kinds


def _is_sentencepiece(tokenizer: Tokenizer) -> bool:
    steps = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return not any(step["type"] == "ByteLevel" for step in steps)


def _byte_level(tokenizer: Tokenizer, where: str, pre: str | None) -> dict[str, Any]:
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_name(tokenizer, where, pre),
        "tokenizer.ggml.merges": merges,
    }


def _pre_name(tokenizer: Tokenizer, where: str, pre: str | None) -> str:
    """Return the name of a pre-tokenizer that cuts every text in the same places."""
    cuts = _cuts(tokenizer.get("pre_tokenizer"))
    ignores = bool(tokenizer["model"].get("ignore_merges"))
    close = [name for name, known in PRE_TOKENIZERS.items() if _cuts(known.steps) == cuts]
    exact = [name for name in close if PRE_TOKENIZERS[name].ignore_merges == ignores]
    if not close and pre is not None:
        pre_tokenizer_of(pre, where)
        return pre
    if not close:
        raise BadInput(
            f"{where}: its pre-tokenizer has no name in GGUF",
            hint="name the nearest by --pre (dbrx for tokenizers trained here); texts may be cut otherwise",
        )
    return (exact or close)[0]


def _cuts(steps: Any) -> list[Any]:
    """Return what decides where a text is cut."""
    found: list[Any] = []
    for step in _flat(steps, "pretokenizers"):
        match step["type"]:
            case "ByteLevel":
                found += [("words",)] if step.get("use_regex", True) else []
            case "Split":
                found.append(("split", step["pattern"].get("Regex"), step["behavior"], step["invert"]))
            case "Digits":
                found.append(("digits", step["individual_digits"]))
            case _:
                found.append((step["type"], step.get("behavior")))
    return found


def _flat(steps: Any, inner: str) -> list[Any]:
    if not steps:
        return []
    return [each for step in steps[inner] for each in _flat(step, inner)] if inner in steps else [steps]


def _scored(tokenizer: Tokenizer, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return scores that put merges in the tokenizer's order: the earlier, the higher."""
    scores = np.full(len(ids), UNSCORED, np.float32)
    for rank, pair in enumerate(tokenizer["model"]["merges"]):
        left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
        number = ids[left + right]
        scores[number] = max(scores[number], np.float32(-rank))
    prefix = "Prepend" in json.dumps(tokenizer.get("normalizer")) or _prepends(tokenizer)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def _prepends(tokenizer: Tokenizer) -> bool:
    steps = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps)


def _special_id(source: Path, config: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int | None:
    """Find a special token in the tokenizer's configuration, else in the model's."""
    token = config.get(f"{name}_token")
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str) and token in ids:
        return ids[token]
    for file in (GENERATION, "config.json"):
        number = _read(source / file).get(f"{name}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int):
            return number
    return None


def _around(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether the post-processor puts special tokens before and after a text."""
    for step in _flat(tokenizer.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing":
            kinds = ["SpecialToken" in part for part in step["single"]]
            return kinds[0], kinds[-1]
    return False, False


def _template(source: Path, config: Mapping[str, Any]) -> str | None:
    path = source / "chat_template.jinja"
    if path.exists():
        return path.read_text("utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None
