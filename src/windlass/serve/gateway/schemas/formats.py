"""Structured output: response_format, and the guided_ parameters of related servers.

Their values are checked here; whether a schema or an expression compiles, the engine finds out in a separate
process, where it can do no harm.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints, model_validator

from windlass.spec.protocol.wire import Grammar

MAX_SCHEMA_BYTES = 64 << 10
MAX_REGEX_CHARS = 4096
MAX_OPTIONS = 1024
MAX_OPTION_CHARS = 1024


def check_schema(value: Any) -> dict[str, Any]:
    """Accept a JSON Schema of bounded size."""
    if not isinstance(value, dict):
        raise ValueError("must be a JSON Schema, which is an object")
    if len(msgspec.json.encode(value)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"is larger than {MAX_SCHEMA_BYTES} bytes")
    return value


Schema = Annotated[dict[str, Any], PlainValidator(check_schema, json_schema_input_type=dict[str, Any])]
Option = Annotated[str, StringConstraints(min_length=1, max_length=MAX_OPTION_CHARS)]
Options = Annotated[list[Option], Field(min_length=1, max_length=MAX_OPTIONS)]
Regex = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REGEX_CHARS)]


class NamedSchema(BaseModel):
    """A JSON Schema with a name; answers match the whole schema, `strict` or not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w-]+$")
    description: str | None = Field(None, max_length=4096)
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The format of the answer: free text, any JSON object, or JSON of a schema."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(None, description="For type json_schema.")

    @model_validator(mode="after")
    def _check_pair(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("needs 'json_schema' for type json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError("has 'json_schema', which is only for type json_schema")
        return self

    @property
    def grammar(self) -> Grammar | None:
        if self.json_schema is not None:
            return schema_grammar(self.json_schema.schema_)
        return Grammar("json") if self.type == "json_object" else None


def schema_grammar(schema: dict[str, Any]) -> Grammar:
    """Encode a schema for the wire; answers have its properties in the same order."""
    return Grammar("schema", msgspec.json.encode(schema).decode())


def choice_grammar(options: list[str]) -> Grammar:
    return Grammar("choice", msgspec.json.encode(options).decode())
