"""What may be asked of the routes, field by field: types, ranges, and what is refused.

Every field of OpenAI's API is here. Those that this server does not honour accept only the value that
asks for nothing (null, or what happens anyway), because a parameter that is dropped in silence is a bug
in somebody's product. Anything else is unknown, and answered with the nearest right name.
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
"""Parameters of related servers, so that they are told apart from typing slips."""


FORMS = ("response_format", "guided_json", "guided_regex", "guided_choice")


def by_default(value: float | str) -> dict[str, Any]:
    """Say in the document what null stands for; JSON Schema's own `default` is the null itself."""
    return {"x-default": value}


class Unsupported:
    """Marks a field that is known, and refused unless it asks for what happens anyway."""


NULL_ONLY = Field(description="Not supported here; only null is accepted.")
Null = Annotated[None, Unsupported(), NULL_ONLY]


class RequestBody(BaseModel):
    """A request body: nothing unknown, nothing coerced, nothing infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


ModelName = Annotated[
    str, Field(min_length=1, max_length=256, description="NAME, NAME@VERSION or NAME:ADAPTER")
]


class GenerationRequest(RequestBody):
    """Work for the engine."""

    model: ModelName
    user: str | None = Field(None, max_length=512, description="Accepted for compatibility; not kept.")
    priority: int | None = Field(
        None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Higher goes first; default 0.",
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
        description="How freely tokens are drawn: 0 always takes the likeliest, above 1 is bold; default 1.",
        json_schema_extra=by_default(1),
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Draw only from the likeliest tokens that together have this probability.",
        json_schema_extra=by_default(1),
    )
    top_k: int | None = Field(
        None,
        ge=-1,
        lt=TOKEN_LIMIT,
        description="Draw only from so many of the likeliest tokens; -1 and 0 keep all.",
        json_schema_extra=by_default(0),
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Leave out tokens that are less likely than this share of the likeliest.",
        json_schema_extra=by_default(0),
    )
    presence_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Taken from the score of every token that the answer has already.",
        json_schema_extra=by_default(0),
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Taken from the score of a token once for each time that the answer has it.",
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
        default_factory=dict, description="What is added to the scores of tokens, by their ids."
    )
    n: int | None = Field(
        None,
        ge=1,
        le=MAX_CHOICES,
        description="Answers per prompt; at temperature 0 they are all the same.",
        json_schema_extra=by_default(1),
    )
    seed: int | None = Field(
        None,
        ge=-SEED_LIMIT,
        lt=SEED_LIMIT,
        description="The same seed, prompt and settings give the same answer.",
    )
    stop: Stop = Field(
        default_factory=list, description="Texts at which the answer ends; they are not part of it."
    )
    response_format: ResponseFormat | None = Field(
        None, description="What the answer looks like: text, any JSON object, or JSON of a schema."
    )
    guided_json: Schema | None = Field(None, description="Like response_format, with the bare schema.")
    guided_regex: Regex | None = Field(None, description="An expression that the whole answer matches.")
    guided_choice: Options | None = Field(None, description="Texts of which the answer is one.")
    stream: bool | None = Field(
        None,
        description="Send the answer while it is made, as server-sent events.",
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
            raise ValueError(f"'{given[0]}' and '{given[1]}' both say what the answer looks like; give one")
        return self

    @property
    def grammar(self) -> Grammar | None:
        """Return what the answer must look like, if anything was said about it."""
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
        "With echo it may be 0: the prompt is scored, and nothing written.",
        json_schema_extra=by_default(DEFAULT_COMPLETION_TOKENS),
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Tell the log-probability of every token, and of so many of its likeliest rivals.",
    )
    echo: bool | None = Field(
        None, description="Put the prompt before the answer.", json_schema_extra=by_default(False)
    )
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Only the value of n.")
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
                f"at most {MAX_CHOICES} are made at once"
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

    role: Literal["system", "developer", "user", "assistant"] = Field(description="Whose turn it is.")
    content: str | list[TextPart] = Field(description="What is said.")
    name: str | None = Field(None, max_length=256, description="Who says it; the chat template may use it.")
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
        description="Tell the log-probability of every token.",
        json_schema_extra=by_default(False),
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Tell so many of each token's likeliest rivals; only with logprobs.",
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
            raise ValueError("'max_tokens' and 'max_completion_tokens' are two names of one thing; give one")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' is only for logprobs: true")
        return self


class EmbeddingRequest(GenerationRequest):
    """POST /v1/embeddings."""

    input: Prompts = Field(description="A text, its token ids, or a list of one of them.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="How vectors are written.", json_schema_extra=by_default("float")
    )
    dimensions: int | None = Field(None, ge=1, lt=TOKEN_LIMIT, description="Only the model's own width.")
