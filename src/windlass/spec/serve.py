"""The table [serve] of the job file: how a model is served.

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
    """Limits of one connection: time, bytes and number. A connection beyond them is closed."""

    head_s: Seconds = Field(10.0, description="for the head of a request, from its first byte")
    idle_s: Seconds = Field(75.0, description="between two requests on one connection")
    stalled_s: Seconds = Field(60.0, description="for a client to take 16 KiB that wait for it")
    head_bytes: Bytes = Field(32768, description="maximum bytes in the head of a request")
    headers: Annotated[int, Field(ge=8)] = Field(100, description="maximum headers of a request")
    connections: Annotated[int, Field(ge=1)] = Field(16384, description="maximum connections of one gateway")
    connections_per_address: Annotated[int, Field(ge=1)] | None = Field(
        None, description="maximum connections from one address; if left out 512, and no limit on loopback"
    )


class Price(ConfigModel):
    """What tokens cost. Nothing is charged: dry runs and the web page show the price beforehand."""

    read: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        0.0, description="for a million tokens of prompts"
    )
    write: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        0.0, description="for a million tokens of answers"
    )
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(
        "USD", description="its code, as ISO 4217 has it"
    )

    def max_cost(self, prompt_tokens: int, max_tokens: int) -> float:
        """Return what a request costs if its answers have the maximum length."""
        return (prompt_tokens * self.read + max_tokens * self.write) / 1e6


class Serve(ConfigModel):
    """How a model is served."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8000, description="port to listen on; 0 takes a free one"
    )
    gateways: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="processes that share the port and hold the clients' connections"
    )
    replicas: Annotated[int, Field(ge=1, le=256)] = Field(
        1,
        description="engine processes, each with the whole model; requests of a lost one move to the others",
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
        description="which cached prompt prefix to evict first: least recently or least frequently used",
    )
    kv: Literal["float16", "float32"] = Field(
        "float16", description="how keys and values are kept; float32 is exact and takes twice the memory"
    )
    drafts: bool = Field(True, description="guess tokens ahead where that is measured to be quicker")
    memory: Bytes | None = Field(
        None, description="memory for several models, e.g. '4GiB'; the least recently used is unloaded first"
    )
    engine: Literal["windlass", "vllm"] = Field(
        "windlass", description="what computes; vllm must be installed, and needs a GPU"
    )
    engine_args: str = Field("", description="further options of `vllm serve`, as on its command line")
    engine_executable: str = Field("vllm", description="the vLLM program; found on PATH if it is a bare name")
    limits: ServeLimits = Field(ServeLimits(), description="rate and concurrency limits")
    price: Price | None = Field(
        None, description="what tokens cost; dry runs and the web page show it before a request is sent"
    )
    health: HealthChecks = Field(HealthChecks(), description="probes with known answers")
    rollout: Rollout = Field(Rollout(), description="how a new version is judged")
    scale: Scale | None = Field(None, description="autoscaling by load; the number is fixed if left out")
    traces: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = Field(
        None,
        description="OpenTelemetry collector that gets traces (OTLP over HTTP), e.g. 'http://127.0.0.1:4318'",
    )
    access_log: Path | None = Field(None, description="file that gets one line of JSON for each request")
    privacy: Privacy = Field(Privacy(), description="what is kept about users, and for how long")
    tenant_figures: bool = Field(False, description="count the tokens of every tenant in /metrics")

    @model_validator(mode="after")
    def _needs_keys(self) -> Self:
        if self.open and not is_loopback(self.host):
            raise ValueError(
                f"open: without keys, anyone who can reach {self.host} could use it; listen on 127.0.0.1"
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
