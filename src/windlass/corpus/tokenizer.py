"""Text to token ids and back, with a tokenizer.json.

Special tokens written out in a text are text: a document that mentions `<|end|>` does not end there.
Only `encode(..., markers=True)` reads them as the tokens they name, for chat templates.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from windlass.spec.errors import BadInput, NotFound
from windlass.store.store_dir import opened

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
END, PAD, MASK, UNKNOWN = "<|end|>", "<|pad|>", "<|mask|>", "<|unknown|>"
CHAT = ("<|user|>", "<|assistant|>", "<|system|>")
SPECIAL = (END, PAD, MASK, *CHAT)

# How well-known tokenizers spell what ours spell END, PAD and MASK, the likeliest first.
_ENDS = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_PADS = (PAD, "<pad>", "[PAD]", "<|finetune_right_pad_id|>")
_MASKS = (MASK, "<mask>", "[MASK]")


class Tokenizer:
    """A tokenizer.json, its tokenizer_config.json, and the ids that other packages use."""

    def __init__(self, data: bytes, *, where: str = FILE, config: Mapping[str, Any] | None = None) -> None:
        self.json, self.where, self.config = data, where, dict(config or {})
        self.inner = _parsed(data, where)
        self.inner.encode_special_tokens = True
        self._ids: dict[str, int] = self.inner.get_vocab(with_added_tokens=True)
        if not self._ids:
            raise BadInput(f"{where}: the tokenizer has no tokens")
        self.vocabulary = max(self._ids.values()) + 1
        """One more than the largest id, so that it sizes an embedding even where ids are skipped."""
        self.end_id = self._end_id()
        found = self._first("pad_token", _PADS)
        self.pad_id = self.end_id if found is None else found
        self.mask_id = self._first("mask_token", _MASKS)

    def __repr__(self) -> str:
        return f"Tokenizer({self.where!r}, vocabulary={self.vocabulary})"

    def __reduce__(self) -> Any:
        return functools.partial(Tokenizer, where=self.where, config=self.config), (self.json,)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.json).hexdigest()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens, which stand for no text."""
        added = self.inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def encode(self, text: str, *, markers: bool = False) -> list[int]:
        """Return the ids of a text; with `markers`, special tokens written in it are read as such."""
        inner = self._with_markers if markers else self.inner
        return list(inner.encode(_valid(text), add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts on all cores; no offsets are kept, which is faster."""
        found = self.inner.encode_batch_fast([_valid(text) for text in texts], add_special_tokens=False)
        return [list(one.ids) for one in found]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids; special tokens are left out unless `special`."""
        return str(self.inner.decode(list(ids), skip_special_tokens=not special))

    def token(self, number: int) -> str:
        """Return how the vocabulary spells an id (a byte-level BPE spells bytes as letters)."""
        found = self.inner.id_to_token(number)
        return "" if found is None else str(found)

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token)

    def token_bytes(self, number: int) -> bytes:
        """Return the bytes that an id stands for; several ids may be needed for one character."""
        if number in self.special_ids or not self._is_byte_level:
            return self.decode([number], special=True).encode()
        letters = _letter_bytes()
        return b"".join(bytes([letters[c]]) if c in letters else c.encode() for c in self.token(number))

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self.json).get("decoder"))

    @functools.cached_property
    def _with_markers(self) -> tokenizers.Tokenizer:
        return _parsed(self.json, self.where)

    def _end_id(self) -> int:
        found = self._first("eos_token", _ENDS)
        if found is None:
            raise BadInput(
                f"{self.where}: no token that ends a text was found",
                hint="looked for eos_token in tokenizer_config.json beside it, and for " + ", ".join(_ENDS),
            )
        return found

    def _first(self, key: str, spellings: Sequence[str]) -> int | None:
        """Return the id of the token that the config names, or else of the first spelling that exists."""
        named = self.config.get(key)
        named = named.get("content") if isinstance(named, dict) else named
        return next((self._ids[s] for s in (named, *spellings) if s in self._ids), None)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer.json (or the directory that holds one) at a path or URL."""
    url = str(path)
    if not url.endswith(".json"):
        url = f"{url.rstrip('/')}/{FILE}"
    try:
        with opened(url) as file:
            data = file.read()
    except NotFound:
        raise NotFound(
            f"{url}: no such tokenizer", hint="give the path of a Hugging Face tokenizer.json"
        ) from None
    return Tokenizer(data, where=url, config=_config_beside(url))


def _config_beside(url: str) -> dict[str, Any]:
    """Return the tokenizer_config.json next to a tokenizer; many have none."""
    folder = url.rpartition("/")[0] or "."
    try:
        with opened(f"{folder}/{CONFIG}") as file:
            found = json.loads(file.read())
    except NotFound:
        return {}
    except ValueError as error:
        raise BadInput(f"{folder}/{CONFIG}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _parsed(data: bytes, where: str) -> tokenizers.Tokenizer:
    try:
        text = data.decode("utf-8")
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise BadInput(f"{where}: not a tokenizer.json: {error}") from None
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for every broken file
        raise BadInput(
            f"{where}: not a tokenizer.json that can be used: {error}",
            hint="it must be the tokenizer.json of Hugging Face's tokenizers library",
        ) from None


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"character {error.start} of the text is half of a surrogate pair") from None
    return text


@functools.cache
def _letter_bytes() -> dict[str, int]:
    """How a byte-level BPE spells bytes: printable Latin-1 as itself, the rest as letters from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
