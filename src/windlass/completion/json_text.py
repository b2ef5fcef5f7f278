"""Reads JSON or Python values, finished or not, into a tree with positions.

Input: any text. Output: a TreeNode, and fixes of syntax mistakes (a missing comma, a wrong kind of quote).
Reading never fails: what makes no sense is skipped. A node at which the text ends is not `closed`, which is
how `cursor` finds the position.
"""

from __future__ import annotations

import json
import re
from typing import Any

from windlass.completion.suggestions import Fix
from windlass.completion.tree import CLOSERS, QUOTES, Kind, TreeEntry, TreeNode, written

MAX_DEPTH = 48
"""Deeper nesting is skipped: no body of an API has it, and reading is recursive."""

MAX_SLIPS = 200
"""A text with more mistakes is not meant to be such a value."""

COMMAS, COLONS = ",，", ":："
LITERALS: dict[str, Any] = {
    "true": True, "false": False, "null": None, "True": True, "False": False, "None": None,
}  # fmt: skip

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,:=\[\]{}()\"'“”‘’`，：]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PREFIX = re.compile(r"[rRbBfFuU]{1,2}(?=[\"'])")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def read_value(text: str, *, python: bool = False) -> tuple[TreeNode | None, list[Fix]]:
    """Read the first value of a text."""
    reader = Reader(text, python=python)
    return reader.value(), reader.slips


def read_arguments(text: str, start: int) -> tuple[TreeNode, list[Fix]]:
    """Read the arguments of a Python call whose parenthesis opens at `start`."""
    reader = Reader(text, python=True, at=start)
    return reader.holder("arguments"), reader.slips


class Reader:
    """One pass over a text; `at` only grows."""

    def __init__(self, text: str, *, python: bool, at: int = 0) -> None:
        self.text = text
        self.python = python
        self.at = at
        self.slips: list[Fix] = []
        self._depth = 0
        self._comma_at = 0

    def value(self) -> TreeNode | None:
        """Read the value that begins here, if one does."""
        self._skip()
        sign = self._peek()
        if sign in CLOSERS and (self.python or sign != "("):
            if self._depth >= MAX_DEPTH:
                return self._code(self.at)
            return self.holder("object") if sign == "{" else self._list()
        start = self.at
        if self.python and (prefix := _PREFIX.match(self.text, self.at)):
            self.at = prefix.end()
            sign = self._peek()
        if sign in QUOTES:
            return self._joined(self._string(start))
        return self._word()

    def holder(self, kind: Kind) -> TreeNode:
        """Read an object from its brace, or arguments from their parenthesis."""
        node = TreeNode(kind, self.at, self.at + 1, closed=False)
        closer = CLOSERS[self.text[self.at]]
        self.at += 1
        self._depth += 1
        while self._goes_on(node, closer):
            before = self.at
            self._entry(node)
            self.at = max(self.at, before + 1)
        self._depth -= 1
        node.end = self.at
        return node

    def _list(self) -> TreeNode:
        node = TreeNode("list", self.at, self.at + 1, closed=False)
        closer = CLOSERS[self.text[self.at]]
        self.at += 1
        self._depth += 1
        while self._goes_on(node, closer):
            before = self.at
            item = self.value()
            if item is not None:
                node.items.append(item)
                self._after(node, item.end)
            self.at = max(self.at, before + 1)
        self._depth -= 1
        node.end = self.at
        return node

    def _goes_on(self, node: TreeNode, closer: str) -> bool:
        """Tell whether another entry may follow; step over the end, and over commas that separate nothing."""
        while True:
            self._skip()
            sign = self._peek()
            if sign and sign in COMMAS:
                self._slip("there is a comma too many", self.at, self.at + 1, "")
                self.at += 1
                continue
            if sign == closer:
                self._trailing(node)
                node.closed = True
                self.at += 1
            elif sign and sign in CLOSERS.values():
                self._slip(f"'{closer}' is missing", self.at, self.at, closer)
                node.closed = True
            else:
                return bool(sign)
            return False

    def _entry(self, node: TreeNode) -> None:
        first = self.value()
        if first is None:
            return
        self._skip()
        sign = self._peek()
        is_key = first.kind in ("string", "word", "number", "literal")
        entry = TreeEntry(first)
        if is_key and sign and (sign in COLONS or sign == "="):
            self._sign(node, entry, sign)
        elif node.kind == "arguments" and not (first.kind == "word" and not sign):
            entry = TreeEntry(None, first)
        elif (
            is_key and sign and sign not in COMMAS and sign not in CLOSERS.values() and node.kind == "object"
        ):
            self._slip("a colon is missing", first.end, first.end, ":")
            entry.colon = first.end
            entry.value = self.value()
        self._check_key(node, entry)
        node.entries.append(entry)
        self._after(node, entry.end)

    def _sign(self, node: TreeNode, entry: TreeEntry, sign: str) -> None:
        """Read the colon or equals sign, and the value behind it."""
        right = "=" if node.kind == "arguments" else ":"
        if sign != right:
            self._slip(f"'{sign}' should be '{right}'", self.at, self.at + 1, right)
        entry.colon = self.at
        self.at += 1
        self._skip()
        if self._peek() not in (*COMMAS, *CLOSERS.values()):
            entry.value = self.value()

    def _check_key(self, node: TreeNode, entry: TreeEntry) -> None:
        key = entry.key
        if key is None or entry.colon < 0:
            return
        if node.kind == "arguments":
            if key.kind == "string":
                self._slip("names of arguments have no quotes", key.start, key.end, str(key.value))
        elif key.kind != "string" and not (self.python and key.kind == "number"):
            self._slip(
                "a key needs quotes", key.start, key.end, json.dumps(str(key.value), ensure_ascii=False)
            )

    def _after(self, node: TreeNode, end: int) -> None:
        """Read the comma behind an entry; a missing one before another entry is a mistake."""
        self._skip()
        sign = self._peek()
        node.comma = bool(sign) and sign in COMMAS
        if node.comma:
            if sign != ",":
                self._slip(f"'{sign}' should be ','", self.at, self.at + 1, ",")
            self._comma_at = self.at
            self.at += 1
        elif sign and sign not in CLOSERS.values():
            self._slip("a comma is missing", end, end, ",")

    def _trailing(self, node: TreeNode) -> None:
        if node.comma and not self.python:
            self._slip("a comma before the end", self._comma_at, self._comma_at + 1, "")

    def _string(self, start: int) -> TreeNode:
        """Read a string; one that is not ended ends with its line."""
        opening = self._peek()
        if self.python and self.text[self.at : self.at + 3] in ('"""', "'''"):
            return self._long_string(start)
        closing = QUOTES[opening]
        self.at += 1
        parts: list[str] = []
        text, size = self.text, len(self.text)
        while self.at < size and text[self.at] != closing and text[self.at] != "\n":
            if text[self.at] == "\\" and self.at + 1 < size:
                parts.append(self._escape())
            else:
                parts.append(text[self.at])
                self.at += 1
        node = TreeNode("string", start, self.at, value="".join(parts), quote=opening)
        if self.at < size and text[self.at] == closing:
            self.at += 1
        else:
            self._unended(node, closing)
        node.end = self.at
        if opening != '"' and not (self.python and opening == "'") and node.closed:
            self._slip(
                'strings are quoted with "', start, node.end, json.dumps(node.value, ensure_ascii=False)
            )
        return node

    def _unended(self, node: TreeNode, closing: str) -> None:
        """Close a string at the end of its line, before the comma that was meant to follow it."""
        node.closed = False
        if self.at < len(self.text):
            kept = self.text[node.start : self.at].rstrip().rstrip(COMMAS)
            self.at = max(node.start + 1, node.start + len(kept))
            node.value = self.text[node.start + 1 : self.at]
            node.closed = True
            self._slip("a quote is missing", self.at, self.at, '"' if closing != "'" else closing)

    def _long_string(self, start: int) -> TreeNode:
        fence = self.text[self.at : self.at + 3]
        begin = self.at + 3
        end = self.text.find(fence, begin)
        self.at = len(self.text) if end < 0 else end + 3
        value = self.text[begin : end if end >= 0 else len(self.text)]
        return TreeNode("string", start, self.at, closed=end >= 0, value=value, quote=fence)

    def _escape(self) -> str:
        sign = self.text[self.at + 1]
        if sign == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", self.text[self.at + 2 : self.at + 6]):
            code = int(self.text[self.at + 2 : self.at + 6], 16)
            self.at += 6
            return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"
        self.at += 2
        return _ESCAPES.get(sign, sign)

    def _joined(self, node: TreeNode) -> TreeNode:
        """Take a string that an operator, a method or another string follows for code."""
        if not self.python or not node.closed:
            return node
        self._skip()
        if self._peek() not in ("+", "%", ".", *QUOTES) and not self.text.startswith(
            ("if ", "for "), self.at
        ):
            return node
        return self._code(node.start)

    def _word(self) -> TreeNode | None:
        found = _WORD.match(self.text, self.at)
        if found is None:
            return None
        start, word = self.at, found[0]
        self.at = found.end()
        if _NUMBER.fullmatch(word):
            return TreeNode("number", start, self.at, value=_number(word))
        if word in LITERALS:
            self._check_literal(word, start)
            return TreeNode("literal", start, self.at, value=LITERALS[word])
        if self.python:
            self._skip()
            sign = self._peek()
            if sign and sign not in (*COMMAS, *COLONS, "=", *CLOSERS.values()):
                return self._code(start)
        return TreeNode("word", start, found.end(), value=word)

    def _check_literal(self, word: str, start: int) -> None:
        right = written(LITERALS[word], python=self.python)
        if word != right:
            self._slip(f"'{word}' is written {right} here", start, self.at, right)

    def _code(self, start: int) -> TreeNode:
        """Step over what is computed, up to the comma or bracket behind it."""
        depth = 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if depth == 0 and (sign == "," or sign in CLOSERS.values()):
                break
            depth += (sign in CLOSERS) - (sign in CLOSERS.values())
            if sign in ("'", '"'):
                self._string(self.at)
            else:
                self.at += 1
        end = start + len(self.text[start : self.at].rstrip())
        return TreeNode("code", start, end, closed=self.at < len(self.text), value=self.text[start:end])

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        while self.python and self._peek() == "#":
            line = self.text.find("\n", self.at)
            self.at = len(self.text) if line < 0 else line + 1
            found = _SPACE.match(self.text, self.at)
            self.at = found.end() if found else self.at

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _slip(self, about: str, start: int, end: int, insert: str) -> None:
        if len(self.slips) < MAX_SLIPS:
            self.slips.append(Fix(about, insert, (start, end)))


def _number(word: str) -> int | float:
    return int(word) if word.lstrip("-").isdigit() and len(word) < 400 else float(word)
