"""Compiles a grammar to an automaton over a model's tokens.

The library is llguidance: it works lazily, so most of the work is done step by step, and it counts that
work. The limits below bound a compilation to some 20 ms and a step to about 8 ms, whatever the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

END_TOKEN = "<|end|>"
NO_END = {
    "content": "<|no end|>",
    "special": True,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
}
MAX_TEXT_BYTES = 256 << 10
MAX_REASON_CHARS = 300
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # about 50,000 a millisecond
    step_lexer_fuel=100_000,  # about 14,000 a millisecond
    step_max_items=20_000,  # about 20,000 a millisecond
    max_items_in_row=2_000,
    max_lexer_states=50_000,  # about 1 kB each
    max_grammar_size=100_000,
    verbose_errors=False,
)
JSON_STYLE: JsonCompileOptions = {
    # Without a bound a small model may fill its whole answer with white space.
    "whitespace_pattern": r"[ \n]{1,8}",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
"""Options that a schema may not override by its own "x-guidance": answers must satisfy the schema exactly."""


class BadGrammar(BadInput):
    """The grammar is invalid or too large."""


def load_vocabulary(model: Path, size: int, stop_tokens: Sequence[int]) -> LLTokenizer:
    """Read the bytes of a model's tokens. Holds the GIL: 0.4 s for 32,000 tokens."""
    path = model / "tokenizer.json"
    if not path.exists():
        raise BadGrammar("this model has no tokenizer, and structured output needs one")
    parts = json.loads(path.read_bytes())
    known = _size_of(parts)
    ends = [token for token in stop_tokens if token < known] or _ends_of(parts)
    if not ends:  # the library needs one: it gets a token that no model has
        ends, known = [known], known + 1
        parts["added_tokens"] = [*parts.get("added_tokens", []), NO_END | {"id": ends[0]}]
    try:
        return LLTokenizer(json.dumps(parts), n_vocab=max(size, known), eos_token=ends)
    except ValueError as error:
        reason = _first_line(str(error))
        raise BadGrammar(f"structured output cannot use this model's tokenizer: {reason}") from None


def compile_grammar(vocabulary: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Return the automaton in its first state; the first mask is computed to find errors early."""
    if len(grammar.text.encode()) > MAX_TEXT_BYTES:
        raise BadGrammar(f"the grammar is larger than {MAX_TEXT_BYTES} bytes")
    matcher = LLMatcher(vocabulary, _written(grammar), log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise BadGrammar(reason_of(matcher))
    return matcher


def reason_of(matcher: LLMatcher) -> str:
    """Return why a matcher failed, in one line and without quoting the grammar."""
    message = matcher.get_error()
    if message.startswith("Parser Error: token"):  # the rest quotes the answer
        return "the tokens so far do not fit the grammar, or its automaton grew too large"
    found = message.rpartition("\nerror: ")[2]  # the last part of a regular expression error
    reason = _first_line(found).partition(". Enable ")[
        0
    ]  # cut hints on library options that users cannot set
    return reason.replace("lexer error:", "the automaton grows too large:")


def _written(grammar: Grammar) -> str:
    """Convert a grammar to the library's format."""
    match grammar.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_STYLE)
        case "schema":
            return LLMatcher.grammar_from_json_schema(
                _parsed(grammar.text, dict, "a JSON Schema"), overrides=JSON_STYLE
            )
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = _parsed(grammar.text, list, "a list of strings")
            if not choices or not all(isinstance(choice, str) and choice for choice in choices):
                raise BadGrammar("the choices must be a list of non-empty strings")
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))


def _parsed(text: str, kind: type, what: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadGrammar(f"the grammar is not JSON; {what} was expected") from None
    if not isinstance(value, kind):
        raise BadGrammar(f"the grammar must be {what}")
    return value


def _size_of(tokenizer: dict[str, Any]) -> int:
    """Return one more than the highest token id of a tokenizer.json."""
    entries = tokenizer["model"].get("vocab", {})
    known: int = len(entries) if isinstance(entries, list) else max(entries.values(), default=-1) + 1
    return max([known, *(int(added["id"]) + 1 for added in tokenizer.get("added_tokens", []))])


def _ends_of(tokenizer: dict[str, Any]) -> list[int]:
    """Return the ids of the token that our own tokenizers put between documents."""
    return [int(added["id"]) for added in tokenizer.get("added_tokens", []) if added["content"] == END_TOKEN]


def _first_line(text: str) -> str:
    return " ".join(text.partition("\n")[0].split())[:MAX_REASON_CHARS]
