"""POST /v1/tokenize and /v1/detokenize: text or messages -> token ids -> text, without the engine.

The ids are those of the same text as the prompt of a completion, or of the same messages in a chat.
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
        None, description="Add the tokenizer's special tokens; default true. Only for text."
    )

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if self.text is not None and self.messages is not None:
            raise ValueError("'messages' and 'text' exclude each other; give one")
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
    """The answer to POST /v1/tokenize; `texts` are the names of the tokens, as in log-probabilities."""

    object: Literal["tokens"]
    model: str
    count: int
    context_length: int
    tokens: list[int]
    texts: list[str]


class TextReply(BaseModel):
    """The answer to POST /v1/detokenize; special tokens, such as the end token, have no text."""

    object: Literal["text"]
    model: str
    count: int
    text: str


async def tokenise(body: TokenizeRequest, service: GatewayService) -> Response:
    """Return the tokens of a prompt and their number."""
    endpoint = service.endpoint(body.model)
    tokens = await _tokens(body, endpoint)
    reply = TokenList(
        object="tokens",
        model=endpoint.id,
        count=len(tokens),
        context_length=endpoint.model_info.context,
        tokens=tokens,
        texts=[token_name(endpoint.served.text, token) for token in tokens],
    )
    return Response(reply.model_dump_json(), media_type="application/json")


async def detokenise(body: DetokenizeRequest, service: GatewayService) -> Response:
    """Return the text of token ids."""
    endpoint = service.endpoint(body.model)
    check_tokens(body.tokens, endpoint.model_info.vocabulary, "tokens")
    text = endpoint.served.text.decode(body.tokens)
    reply = TextReply(object="text", model=endpoint.id, count=len(body.tokens), text=text)
    return Response(reply.model_dump_json(), media_type="application/json")


async def _tokens(body: TokenizeRequest, endpoint: ModelEndpoint) -> list[int]:
    if isinstance(endpoint.served.text, NumberText):
        message = f"'{endpoint.id}' has no tokenizer; its prompts are token ids"
        raise ApiError("no_tokenizer", message, param="model")
    if body.messages is not None:
        template = endpoint.served.template
        return await endpoint.encode(template.render(body.messages), special=template.wrap, param="messages")
    return await endpoint.encode(body.text or "", special=body.special is not False, param="text")
