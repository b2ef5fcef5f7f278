"""The table [serve] of the job file: how to answer.

Every table is a frozen model that refuses keys it does not know.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from windlass.spec.config_model import Bytes, ConfigModel, Seconds
from windlass.spec.limits import ServeLimits
from windlass.spec.privacy import Privacy
from windlass.spec.rollout import HealthChecks, Rollout
from windlass.spec.scale import Scale


class Transport(ConfigModel):
    """What one connection may take: time, bytes and places. Clients that need more are cut."""

    head_s: Seconds = Field(10.0, description="for the head of a request, from its first byte")
    idle_s: Seconds = Field(75.0, description="between two requests on one connection")
    stalled_s: Seconds = Field(60.0, description="for a client to take 16 KiB that wait for it")
    head_bytes: Bytes = Field(32768, description="most bytes in the head of a request")
    headers: Annotated[int, Field(ge=8)] = Field(100, description="most headers of a request")
    connections: Annotated[int, Field(ge=1)] = Field(16384, description="most connections of one gateway")
    connections_per_address: Annotated[int, Field(ge=1)] | None = Field(
        None, description="most connections from one address; 512 if left out, and this machine has no limit"
    )


class Price(ConfigModel):
    """What tokens cost. Nothing is charged: callers are told beforehand."""

    read: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        0.0, description="for a million tokens of prompts"
    )
    write: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        0.0, description="for a million tokens of answers"
    )
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(
        "USD", description="its code, as ISO 4217 has it"
    )

    def most(self, prompt_tokens: int, max_tokens: int) -> float:
        """Return what a request costs if its answers are as long as they may be."""
        return (prompt_tokens * self.read + max_tokens * self.write) / 1e6


class Serve(ConfigModel):
    """How to answer."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8000, description="port to listen on; 0 takes a free one"
    )
    gateways: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="processes that share the port and hold the clients' connections"
    )
    replicas: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="engine processes, each with the whole model; they take over from one another"
    )
    state: str | None = Field(
        None, description="database of keys, limits and roll-outs, a URL; HOME/service.db if left out"
    )
    open: bool = Field(False, description="answer without keys; on loopback only")
    control: bool = Field(
        True, description="offer runs, models and plans to keys with the scope admin, below /admin/control"
    )
    origins: tuple[str, ...] = Field(
        (), description="origins of web pages that may call from a browser, e.g. 'https://app.example'"
    )
    tls_certificate: Path | None = Field(None, description="certificate chain in PEM; makes it https")
    tls_key: Path | None = Field(None, description="the certificate's private key in PEM, not encrypted")
    transport: Transport = Field(Transport(), description="what one connection may take")
    slots: Annotated[int, Field(ge=1, le=1024)] = Field(32, description="requests computed together")
    queue: Annotated[int, Field(ge=0)] = Field(256, description="requests that may wait for a slot")
    deadline: Seconds | None = Field(
        None, description="longest time for an answer, e.g. '10m'; clients may set a shorter one"
    )
    threads: Annotated[int, Field(ge=1)] | None = Field(
        None, description="CPU threads; all cores if left out"
    )
    precision: Literal["float32", "bfloat16", "int8", "int4"] | None = Field(
        None, description="of the weights while they are served; as they are stored if left out"
    )
    prefix_cache: Literal["lru", "lfu", "off"] = Field(
        "lru",
        description="beginnings of prompts that are kept: forget the least recently, or least often, used",
    )
    kv: Literal["float16", "float32"] = Field(
        "float16", description="how keys and values are kept; float32 is exact and takes twice the memory"
    )
    drafts: bool = Field(True, description="guess tokens ahead where that is measured to be quicker")
    memory: Bytes | None = Field(
        None, description="most memory for several models, e.g. '4GiB'; beyond it the longest unused leaves"
    )
    engine: Literal["windlass", "vllm"] = Field(
        "windlass", description="what computes; vllm must be installed, and needs a GPU"
    )
    engine_args: str = Field("", description="further options of `vllm serve`, as on its command line")
    engine_executable: str = Field("vllm", description="the vLLM program; found on PATH if it is a bare name")
    limits: ServeLimits = Field(ServeLimits(), description="how much may be asked for")
    price: Price | None = Field(
        None, description="what tokens cost; dry runs and the page tell it before anything is asked"
    )
    health: HealthChecks = Field(HealthChecks(), description="questions whose answers are known")
    rollout: Rollout = Field(Rollout(), description="how a new version is judged")
    scale: Scale | None = Field(
        None, description="how many replicas, by the load; as many as asked for if left out"
    )
    traces: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = Field(
        None,
        description="OpenTelemetry collector that gets traces (OTLP over HTTP), e.g. 'http://127.0.0.1:4318'",
    )
    access_log: Path | None = Field(None, description="file that gets one line of JSON for each request")
    privacy: Privacy = Field(Privacy(), description="what is kept about those who use it, and for how long")
    tenant_figures: bool = Field(False, description="count the tokens of every tenant in /metrics")

    @model_validator(mode="after")
    def _needs_keys(self) -> Self:
        if self.open and not is_loopback(self.host):
            raise ValueError(
                f"open: without keys, whoever reaches {self.host} could use it; listen on 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
