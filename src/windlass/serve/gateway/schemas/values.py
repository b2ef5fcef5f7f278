"""Values that need more than a type: prompts, stop strings, logit biases, and their limits.

Each check is one pass over the value, before anything is tokenised or allocated. Its message is one clause
that says what would be right; the caller puts the parameter's name in front.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, StringConstraints

MAX_CHOICES = 128
MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_PRIORITY = 100
MAX_INPUTS = 2048
SEED_LIMIT = 1 << 63
TOKEN_LIMIT = 1 << 31


def check_prompts(value: Any) -> list[str | list[int]]:
    """Accept a string, token ids, or a list of one of them; return a list of prompts."""
    if isinstance(value, str) or _is_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, a list of texts, a list of token ids or a list of such lists")
    if len(value) > MAX_INPUTS:
        raise ValueError(f"has {len(value)} entries; at most {MAX_INPUTS} are allowed")
    kinds = {type(item) for item in value}
    if kinds not in ({str}, {list}):
        raise ValueError("must hold texts only, or lists of token ids only")
    for item in value:
        if not item:
            raise ValueError("is empty; there must be at least one token to continue")
        if isinstance(item, list):
            _check_ids(item)
    return value


def check_stop(value: Any) -> list[str]:
    """Accept null, one stop string or up to four; return a list."""
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"must be a text or a list of at most {MAX_STOPS} texts")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} texts; at most {MAX_STOPS} are allowed")
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"has a text that is empty or longer than {MAX_STOP_CHARS} characters")
    return stops


def check_bias(value: Any) -> dict[int, float]:
    """Accept {"token id": bias}; JSON has no integer keys, so the ids come as text."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise ValueError(f"must map at most {MAX_BIASES} token ids to numbers from -100 to 100")
    return {_bias_key(key): _bias_value(bias) for key, bias in value.items()}


def _bias_key(key: Any) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
        raise ValueError("has a key that is not a token id")
    if int(key) >= TOKEN_LIMIT:
        raise ValueError("has a key that is not a token id")
    return int(key)


def _bias_value(bias: Any) -> float:
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise ValueError("has a value outside -100 to 100")
    return float(bias)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int | float)


def _check_ids(ids: list[Any]) -> None:
    if not all(type(token) is int and 0 <= token < TOKEN_LIMIT for token in ids):
        raise ValueError("must hold token ids only (whole numbers, 0 or more)")


_TEXT_OR_IDS = str | list[str] | list[int] | list[list[int]]
Prompts = Annotated[list[str | list[int]], PlainValidator(check_prompts, json_schema_input_type=_TEXT_OR_IDS)]
Stop = Annotated[
    list[str],
    PlainValidator(
        check_stop,
        json_schema_input_type=Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
            Field(max_length=MAX_STOPS),
        ]
        | None,
    ),
]
Bias = Annotated[
    dict[int, float],
    PlainValidator(
        check_bias,
        json_schema_input_type=dict[
            Annotated[str, StringConstraints(pattern="^[0-9]{1,10}$")],
            Annotated[float, Field(ge=-100, le=100)],
        ]
        | None,
    ),
]
MaxTokens = Annotated[int, Field(ge=1, lt=TOKEN_LIMIT)]
