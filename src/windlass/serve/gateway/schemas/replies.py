"""The replies of the routes, in OpenAI's shapes. Unset fields are not sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """Parallel lists over the tokens of a text completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer, or in a stream its next piece."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionReply(BaseModel):
    """The answer to POST /v1/completions, and every chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """An alternative token, with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The chosen token, and its most likely alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the tokens of a message."""

    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(BaseModel):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatReply(BaseModel):
    """The answer to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """The next piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(BaseModel):
    """A chunk of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(BaseModel):
    """One unit vector, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(BaseModel):
    """The answer to POST /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class ServedModelReply(BaseModel):
    """A served model; context and parameters are null until an engine has connected."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None
    """The base model of an adapter."""
    context_length: int | None
    parameters: int | None
    family: str | None


class ModelList(BaseModel):
    """The answer to GET /v1/models."""

    object: Literal["list"]
    data: list[ServedModelReply]


class OwnKey(BaseModel):
    """What the caller's key may do; `id` and `tenant` are empty if the server needs no keys."""

    object: Literal["key"]
    id: str
    tenant: str
    scopes: list[str]


class HealthReply(BaseModel):
    """The answer to /healthz and /readyz."""

    status: Literal["ok", "ready"]
