"""Text to token ids and back, for the model that is served.

The tokenizer is Hugging Face's tokenizer.json in the model directory. A model without one takes token ids as
prompts, and its answers are written as numbers.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from windlass.http.errors import ApiError
from windlass.serve.gateway.text.detokenise import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from windlass.spec.errors import BadInput

NORMALISING_SLACK = 4
"""Normalisers may shorten a text (NFC, stripped spaces): this many bytes may become one."""


class TextCodec(Protocol):
    """What the routes need to know about a vocabulary."""

    def encode(self, text: str, *, special: bool, context: int) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...

    def token_id(self, token: str) -> int | None: ...

    def token_bytes(self, token: int) -> bytes: ...

    def detokenizer(self) -> Detokenizer: ...


def load_text(model: Path) -> TextCodec:
    """Return the tokenizer of a model directory; NumberText if it has none."""
    path = model / "tokenizer.json"
    if not path.exists():
        return NumberText()
    try:
        return TokenizerText(Tokenizer.from_file(str(path)))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for any damage to the file
        raise BadInput(
            f"{path}: the tokenizers library cannot read it: {error}",
            hint="export the model again, or remove the file to serve token ids only",
        ) from None


class TokenizerText:
    """A vocabulary with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A tokenizer saved with padding or truncation would change prompts behind the client's back.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}
        self._bytes_of = ByteTable(self._read_bytes)
        self._visible = ByteTable(self._visible_bytes)

    def encode(self, text: str, *, special: bool, context: int) -> list[int]:
        """Return the ids of a text; `special` adds the tokenizer's special tokens around it.

        A text that is too long for the context with any tokens is refused before it is tokenised.
        """
        size = len(text.encode("utf-8"))
        if size > context * self._max_token_bytes * NORMALISING_SLACK:
            raise ApiError(
                "context_length_exceeded",
                f"the prompt has {size} bytes, which cannot fit a context of {context} tokens",
            )
        encoded = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return list(encoded[0].ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; those of a special token are its name."""
        return self._bytes_of[token]

    def detokenizer(self) -> Detokenizer:
        if self._is_byte_level:
            return ByteDetokenizer(self._visible)
        return WindowDetokenizer(self.decode)

    def _visible_bytes(self, token: int) -> bytes:
        return b"" if token in self._special else self._bytes_of[token]

    def _read_bytes(self, token: int) -> bytes:
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return b""
        if token in self._special:
            return str(name).encode("utf-8")
        if self._is_byte_level:
            return _byte_level(name)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        if self._has_word_marks:
            return str(name).replace("\u2581", " ").encode("utf-8")
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode("utf-8")

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        decoder = json.loads(self._tokenizer.to_str()).get("decoder") or {"type": "none"}
        return list(decoder.get("decoders", [decoder]))

    @cached_property
    def _is_byte_level(self) -> bool:
        return [decoder["type"] for decoder in self._decoders] == ["ByteLevel"]

    @cached_property
    def _has_word_marks(self) -> bool:
        return any("\u2581" in json.dumps(decoder, ensure_ascii=False) for decoder in self._decoders)

    @cached_property
    def _max_token_bytes(self) -> int:
        return max((len(token.encode("utf-8")) for token in self._tokenizer.get_vocab()), default=1)


class NumberText:
    """A vocabulary without a tokenizer: tokens are written as their numbers."""

    def __init__(self) -> None:
        self._table = ByteTable(self.token_bytes)

    def encode(self, text: str, *, special: bool, context: int) -> list[int]:
        raise ApiError("no_tokenizer", "this model has no tokenizer; send token ids instead of text")

    def decode(self, tokens: list[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode()

    def token_id(self, token: str) -> int | None:
        return None

    def token_bytes(self, token: int) -> bytes:
        return f" {token}".encode()

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer(self._table)


def token_name(text: TextCodec, token: int) -> str:
    """Return the name of a token in log-probabilities; parts of a character are written bytes:\\xe4."""
    data = text.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _byte_level(name: str) -> bytes:
    """Undo the byte-level alphabet; an added token, which is outside it, stands for itself."""
    table = _byte_alphabet()
    if all(char in table for char in name):
        return bytes(table[char] for char in name)
    return name.encode("utf-8")


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Map the visible characters of byte-level BPE to bytes.

    Bytes that Latin-1 prints stand for themselves; the others follow in order from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
