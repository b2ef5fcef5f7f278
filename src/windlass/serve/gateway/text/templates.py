"""Conversations to prompts, by the model's own chat template, or by our default if it has none.

A model's template is Jinja code that comes with the model, so it runs in a sandbox that can change nothing.
Clients cannot send templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn, Protocol

import msgspec
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from windlass.http.errors import ApiError
from windlass.serve.gateway.schemas.requests import ChatMessage
from windlass.spec.errors import BadInput

ROLES = ("system", "user", "assistant")
ROLE_TOKENS = tuple(f"<|{role}|>" for role in ROLES)


class Renders(Protocol):
    """A Jinja template, or our own TurnTemplate."""

    def render(self, *, messages: Sequence[Mapping[str, Any]], **names: Any) -> str: ...


class TurnTemplate(msgspec.Struct, frozen=True):
    """A template that writes one turn after another; our defaults need no Jinja."""

    turn: str
    end: str

    def render(self, *, messages: Sequence[Mapping[str, Any]], **names: Any) -> str:
        turns = [self.turn % (message["role"], message["content"]) for message in messages]
        return "".join(turns) + self.end


WITH_ROLE_TOKENS = TurnTemplate("<|%s|>%s", "<|assistant|>")
IN_PLAIN_WORDS = TurnTemplate("%s: %s\n", "assistant:")


class TemplateRefusal(TemplateError):
    """Raised by a template that refuses the messages."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template, and the strings at which its answers end."""

    template: Renders
    special: dict[str, str] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    wrap: bool = False
    """Whether the tokenizer must add its special tokens; published templates contain them."""

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the prompt that asks the model for the next turn."""
        turns = [_turn(message) for message in messages]
        try:
            return self.template.render(
                messages=turns, add_generation_prompt=True, tools=None, documents=None, **self.special
            )
        except TemplateRefusal as error:
            raise ApiError("invalid_messages", f"the chat template says: {error}", param="messages") from None
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            # A template is foreign code: whatever it raises, it does not accept these messages.
            raise ApiError(
                "invalid_messages", "the model's chat template cannot take these messages", param="messages"
            ) from None


def compile_template(source: str, *, where: str, special: dict[str, str]) -> ChatTemplate:
    """Compile a template that came with a model."""
    try:
        return ChatTemplate(_compiled(source), special)
    except TemplateError as error:
        raise BadInput(f"{where}: the chat template is not valid Jinja: {error}") from None


def default_template(*, role_tokens: bool) -> ChatTemplate:
    """Return the template of a model that has none.

    Role tokens are used when the vocabulary has them. Without them the turns are written in plain words,
    and an answer ends where the model begins to write the user's next turn.
    """
    if role_tokens:
        return ChatTemplate(WITH_ROLE_TOKENS, wrap=True)
    return ChatTemplate(IN_PLAIN_WORDS, stops=("\nuser:", "\nsystem:"), wrap=True)


class GenerationBlock(Extension):
    """`{% generation %}` marks what the model wrote, for training; in a prompt it is only a scope."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _turn(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.text}
    return turn if message.name is None else turn | {"name": message.name}


def _compiled(source: str) -> Template:
    """Compile a template; its globals become one dictionary, because every rendering copies them."""
    template = _environment().from_string(source)
    template.globals = dict(template.globals)
    return template


def _environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the functions that published templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(str(message))


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` as transformers has it: with options, and without escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
