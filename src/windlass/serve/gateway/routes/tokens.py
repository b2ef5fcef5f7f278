"""POST /v1/tokenize and /v1/detokenize: text or messages -> token ids -> text, without the engine.

Ids are those that the same text has as the prompt of a completion, or the same messages in a chat.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from windlass.http.errors import ApiError
from windlass.serve.gateway.schemas.requests import MAX_MESSAGES, ChatMessage, ModelName, RequestBody
from windlass.serve.gateway.schemas.values import TOKEN_LIMIT
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, check_tokens
from windlass.serve.gateway.text.tokenise import NumberText, token_name

MAX_IDS = 1 << 17


class TokenizeRequest(RequestBody):
    """POST /v1/tokenize: `text` or `messages`."""

    model: ModelName
    text: str | None = Field(None, min_length=1, description="A prompt.")
    messages: list[ChatMessage] | None = Field(
        None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="A conversation; the chat template is applied.",
    )
    special: bool | None = Field(
        None, description="Add what the tokenizer puts around a prompt; default true. Only for text."
    )

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if self.text is not None and self.messages is not None:
            raise ValueError("'messages' and 'text' are two things to count; give one")
        if self.text is None and self.messages is None:
            raise ValueError("'text' is missing, and so is 'messages'; give one of them")
        if self.messages is not None and self.special is not None:
            raise ValueError("'special' is only for text; with messages the chat template decides")
        return self


class DetokenizeRequest(RequestBody):
    """POST /v1/detokenize."""

    model: ModelName
    tokens: list[Annotated[int, Field(ge=0, lt=TOKEN_LIMIT)]] = Field(max_length=MAX_IDS)


class TokenList(BaseModel):
    """The answer to POST /v1/tokenize; `texts` are the tokens as log-probabilities name them."""

    object: Literal["tokens"]
    model: str
    count: int
    context_length: int
    tokens: list[int]
    texts: list[str]


class TextReply(BaseModel):
    """The answer to POST /v1/detokenize; tokens that stand for no text, such as ends, leave none."""

    object: Literal["text"]
    model: str
    count: int
    text: str


async def tokenise(ask: TokenizeRequest, service: GatewayService) -> Response:
    """Count and show the tokens of a prompt."""
    desk = service.desk(ask.model)
    tokens = await _tokens(ask, desk)
    reply = TokenList(
        object="tokens",
        model=desk.id,
        count=len(tokens),
        context_length=desk.offered.context,
        tokens=tokens,
        texts=[token_name(desk.served.text, token) for token in tokens],
    )
    return Response(reply.model_dump_json(), media_type="application/json")


async def detokenise(ask: DetokenizeRequest, service: GatewayService) -> Response:
    """Write the text that token ids stand for."""
    desk = service.desk(ask.model)
    check_tokens(ask.tokens, desk.offered.vocabulary, "tokens")
    text = desk.served.text.decode(ask.tokens)
    reply = TextReply(object="text", model=desk.id, count=len(ask.tokens), text=text)
    return Response(reply.model_dump_json(), media_type="application/json")


async def _tokens(ask: TokenizeRequest, desk: ModelEndpoint) -> list[int]:
    if isinstance(desk.served.text, NumberText):
        message = f"'{desk.id}' has no tokenizer; its prompts are token ids"
        raise ApiError("no_tokenizer", message, param="model")
    if ask.messages is not None:
        template = desk.served.template
        return await desk.encode(template.render(ask.messages), special=template.wrap, param="messages")
    return await desk.encode(ask.text or "", special=ask.special is not False, param="text")
