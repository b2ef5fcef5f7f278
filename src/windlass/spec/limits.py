"""Rate and concurrency limits: of one key, of one tenant, and of all requests together.

The same table is written in the job file ([serve.limits]) and kept with a key or a tenant. What is left out
is not limited; where several limits apply, the tightest decides.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from windlass.spec.config_model import ConfigModel, Count, Seconds, Share

Positive = Annotated[float, Field(gt=0, le=1e9)]
Few = Annotated[int, Field(ge=1, le=1_000_000)]


class Limits(ConfigModel):
    """The limits of one key, one tenant, or all requests together."""

    requests_per_second: Positive | None = Field(None, description="requests a second, in the long run")
    burst: Few | None = Field(
        None, description="requests that may arrive at once; those of one second if left out"
    )
    tokens_per_minute: Count | None = Field(
        None, description="tokens read and written a minute; a minute's tokens may be requested at once"
    )
    tokens_per_day: Count | None = Field(
        None, description="tokens read and written a day, which begins at midnight UTC"
    )
    concurrent: Few | None = Field(None, description="requests in progress at once")
    queue: Few | None = Field(None, description="requests that wait for their first token at once")
    queue_tokens: Count | None = Field(
        None, description="tokens of prompts that wait for their first token at once"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Limits:
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst needs requests_per_second; give both")
        return self

    @property
    def burst_requests(self) -> int:
        """Return how many requests may arrive at once."""
        return self.burst or max(1, math.ceil(self.requests_per_second or 1))


class BrownOut(ConfigModel):
    """When the service sheds load, so that important requests stay fast."""

    wait: Share = Field(0.5, description="level 1 if the next request would wait this share of `wait`")
    refused: Share = Field(0.05, description="level 2 if more than this share of requests finds no capacity")
    memory: Share = Field(
        0.95, description="level 1 if running requests hold this share of the engine's memory"
    )
    calm: Seconds = Field(5.0, description="a level ends after so long without its cause, e.g. '5s'")


class ServeLimits(ConfigModel):
    """The limits of the service, and what happens beyond them."""

    all: Limits = Field(Limits(), description="all requests together")
    tenant: Limits = Field(Limits(), description="each tenant that has no limits of its own")
    key: Limits = Field(Limits(), description="each key that has no limits of its own")
    wait: Seconds = Field(
        2.0, description="requests that would wait longer than this are refused at once, e.g. '500ms'"
    )
    brown_out: BrownOut = Field(BrownOut(), description="when the service sheds load")
