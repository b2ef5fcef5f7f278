"""The request bodies of the routes, field by field: types, ranges, and what is refused.

Every field of OpenAI's API is here. Unsupported fields accept only the value that changes nothing (null, or
the default behaviour), because a parameter that is ignored in silence becomes a bug in the client's product.
Other fields are unknown; the error names the nearest known one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from windlass.serve.gateway.schemas.formats import (
    Options,
    Regex,
    ResponseFormat,
    Schema,
    choice_grammar,
    schema_grammar,
)
from windlass.serve.gateway.schemas.values import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PRIORITY,
    SEED_LIMIT,
    TOKEN_LIMIT,
    Bias,
    MaxTokens,
    Prompts,
    Stop,
)
from windlass.spec.protocol.wire import Grammar

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 512
MAX_MESSAGES = 4096

ELSEWHERE = frozenset(
    {
        "bad_words",
        "chat_template",
        "chat_template_kwargs",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_whitespace_pattern",
        "ignore_eos",
        "json_schema",
        "length_penalty",
        "min_tokens",
        "mirostat",
        "prompt_embeds",
        "regex",
        "skip_special_tokens",
        "stop_token_ids",
        "structured_outputs",
        "typical_p",
        "use_beam_search",
    }
)
"""Parameters of related servers: the error says that they are unsupported, not that they are misspelt."""


FORMS = ("response_format", "guided_json", "guided_regex", "guided_choice")


def by_default(value: float | str) -> dict[str, Any]:
    """Document what null stands for; JSON Schema's own `default` would be null."""
    return {"x-default": value}


class Unsupported:
    """Marks a known but unsupported field: it is refused unless it asks for the default behaviour."""


NULL_ONLY = Field(description="Not supported here; only null is accepted.")
Null = Annotated[None, Unsupported(), NULL_ONLY]


class RequestBody(BaseModel):
    """A request body without unknown fields, type coercion or infinite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


ModelName = Annotated[
    str, Field(min_length=1, max_length=256, description="NAME, NAME@VERSION or NAME:ADAPTER")
]


class GenerationRequest(RequestBody):
    """The fields of every request to an engine."""

    model: ModelName
    user: str | None = Field(None, max_length=512, description="Accepted for compatibility; not stored.")
    priority: int | None = Field(
        None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Requests with a higher priority go first; default 0.",
        json_schema_extra=by_default(0),
    )


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = Field(None, description="Send token counts in a last chunk.")
    include_obfuscation: Annotated[Literal[False] | None, Unsupported()] = None


class Sampling(GenerationRequest):
    """What text completions and chat share."""

    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="How randomly tokens are drawn: 0 always takes the most likely token; default 1.",
        json_schema_extra=by_default(1),
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Draw only from the most likely tokens that together have this probability.",
        json_schema_extra=by_default(1),
    )
    top_k: int | None = Field(
        None,
        ge=-1,
        lt=TOKEN_LIMIT,
        description="Draw only from this many of the most likely tokens; -1 and 0 keep all.",
        json_schema_extra=by_default(0),
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Drop tokens whose probability is below this share of the highest one.",
        json_schema_extra=by_default(0),
    )
    presence_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Subtracted from the logit of every token that is already in the answer.",
        json_schema_extra=by_default(0),
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Subtracted from the logit of a token for each time it is in the answer.",
        json_schema_extra=by_default(0),
    )
    repetition_penalty: float | None = Field(
        None,
        gt=0,
        le=2,
        description="Above 1, tokens of the prompt and the answer become less likely.",
        json_schema_extra=by_default(1),
    )
    logit_bias: Bias = Field(
        default_factory=dict, description="Values added to the logits of tokens, by token id."
    )
    n: int | None = Field(
        None,
        ge=1,
        le=MAX_CHOICES,
        description="Answers per prompt; at temperature 0 they are identical.",
        json_schema_extra=by_default(1),
    )
    seed: int | None = Field(
        None,
        ge=-SEED_LIMIT,
        lt=SEED_LIMIT,
        description="The same seed, prompt and settings give the same answer.",
    )
    stop: Stop = Field(
        default_factory=list, description="Texts at which the answer ends; the answer does not include them."
    )
    response_format: ResponseFormat | None = Field(
        None, description="The format of the answer: text, any JSON object, or JSON of a schema."
    )
    guided_json: Schema | None = Field(
        None, description="Like response_format with json_schema, but only the schema."
    )
    guided_regex: Regex | None = Field(
        None, description="A regular expression that the whole answer matches."
    )
    guided_choice: Options | None = Field(None, description="The answer is one of these texts.")
    stream: bool | None = Field(
        None,
        description="Send the answer while it is generated, as server-sent events.",
        json_schema_extra=by_default(False),
    )
    stream_options: StreamOptions | None = Field(None, description="Only with stream: true.")

    @model_validator(mode="after")
    def _check_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' is only for stream: true")
        return self

    @model_validator(mode="after")
    def _check_forms(self) -> Sampling:
        given = [name for name in FORMS if name in self.model_fields_set and getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"'{given[0]}' and '{given[1]}' both set the format of the answer; give one")
        return self

    @property
    def grammar(self) -> Grammar | None:
        """Return the grammar of the answer, if the request constrains its format."""
        if self.guided_json is not None:
            return schema_grammar(self.guided_json)
        if self.guided_regex is not None:
            return Grammar("regex", self.guided_regex)
        if self.guided_choice is not None:
            return choice_grammar(self.guided_choice)
        return self.response_format.grammar if self.response_format is not None else None


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Prompts = Field(description="The text to continue, its token ids, or a list of one of them.")
    max_tokens: int | None = Field(
        None,
        ge=0,
        lt=TOKEN_LIMIT,
        description=f"Default {DEFAULT_COMPLETION_TOKENS}, or what the context leaves if that is less. "
        "With echo it may be 0: the prompt is scored and nothing is generated.",
        json_schema_extra=by_default(DEFAULT_COMPLETION_TOKENS),
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Return the log-probability of every token, and of this many of its top alternatives.",
    )
    echo: bool | None = Field(
        None, description="Put the prompt before the answer.", json_schema_extra=by_default(False)
    )
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Must equal n.")
    suffix: Null = None

    @model_validator(mode="after")
    def _check_amount(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("'max_tokens' is 0; that is only for echo: true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("'best_of' must equal 'n'; choosing among more answers is not supported here")
        if len(self.prompt) * (self.n or 1) > MAX_CHOICES:
            raise ValueError(
                f"'prompt' and 'n' ask for {len(self.prompt) * (self.n or 1)} answers; "
                f"at most {MAX_CHOICES} are allowed"
            )
        return self


class TextPart(BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"] = Field(description="Who speaks.")
    content: str | list[TextPart] = Field(description="The text of the turn.")
    name: str | None = Field(
        None, max_length=256, description="The name of the speaker; the chat template may use it."
    )
    refusal: Null = None
    audio: Null = None
    annotations: Annotated[Annotated[list[Any], Field(max_length=0)] | None, Unsupported()] = None
    function_call: Null = None
    tool_calls: Null = None
    tool_call_id: Null = None
    reasoning_content: Null = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The conversation so far, oldest first."
    )
    max_tokens: MaxTokens | None = Field(None, description="The older name of max_completion_tokens.")
    max_completion_tokens: MaxTokens | None = Field(
        None,
        description=f"Default {DEFAULT_CHAT_TOKENS}, or what the context leaves if that is less.",
        json_schema_extra=by_default(DEFAULT_CHAT_TOKENS),
    )
    logprobs: bool | None = Field(
        None,
        description="Return the log-probability of every token.",
        json_schema_extra=by_default(False),
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Return this many of each token's most likely alternatives; only with logprobs.",
    )
    modalities: Annotated[list[Literal["text"]] | None, Unsupported()] = None
    service_tier: Annotated[Literal["auto", "default"] | None, Unsupported()] = None
    store: Annotated[Literal[False] | None, Unsupported()] = None
    tool_choice: Annotated[Literal["none"] | None, Unsupported()] = None
    audio: Null = None
    function_call: Null = None
    functions: Null = None
    metadata: Null = None
    moderation: Null = None
    parallel_tool_calls: Null = None
    prediction: Null = None
    prompt_cache_key: Null = None
    prompt_cache_options: Null = None
    prompt_cache_retention: Null = None
    reasoning_effort: Null = None
    safety_identifier: Null = None
    tools: Null = None
    verbosity: Null = None
    web_search_options: Null = None

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError(
                "'max_tokens' and 'max_completion_tokens' are two names of the same parameter; give one"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' is only for logprobs: true")
        return self


class EmbeddingRequest(GenerationRequest):
    """POST /v1/embeddings."""

    input: Prompts = Field(description="A text, its token ids, or a list of one of them.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="The encoding of the vectors.", json_schema_extra=by_default("float")
    )
    dimensions: int | None = Field(
        None, ge=1, lt=TOKEN_LIMIT, description="Must equal the width of the model's vectors."
    )
