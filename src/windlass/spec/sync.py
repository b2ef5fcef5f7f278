"""When and how replicas synchronise their weights. docs/sync.md describes each policy and its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from windlass.spec.config_model import ConfigModel
from windlass.spec.units import parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=float | str), Field(gt=0)]
Steps = Annotated[int, Field(ge=1)]


class Sync(ConfigModel):
    """How replicas (dp) exchange gradients or weights; it may be changed while a run trains."""

    policy: Literal["every-step", "local", "timed", "diloco", "server"] = Field(
        "every-step",
        description="add up gradients at every step; or average weights every so many steps (local), every so"
        " many seconds (timed), or by an outer optimizer (diloco); or leave weights and optimizer to"
        " processes of their own (server)",
    )
    every: Steps = Field(50, description="steps between exchanges (local, diloco)")
    seconds: Seconds = Field(10.0, description="seconds between exchanges (timed)")
    outer_rate: Annotated[float, Field(gt=0)] = Field(0.7, description="outer learning rate (diloco)")
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="outer Nesterov momentum (diloco)"
    )
    fragments: Steps = Field(
        1, description="parts of the model that are exchanged in turn, each every `every` steps (diloco)"
    )
    delay: Annotated[int, Field(ge=0)] = Field(
        0, description="steps for which training continues while an exchange is in progress (diloco)"
    )
    compress: Literal["none", "bfloat16", "powersgd", "top-k"] = Field(
        "none", description="what is sent instead of float32: halves, low-rank factors, or the largest values"
    )
    rank: Steps = Field(4, description="rank of the factors (powersgd)")
    keep_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.01, description="share of the values that are sent; the rest waits for the next exchange (top-k)"
    )
    mode: Literal["synchronous", "bounded", "asynchronous"] = Field(
        "synchronous",
        description="workers that divide batches wait for each other at each one (synchronous); or what each"
        " of them pushes is an update by itself, and a worker runs at most `staleness` updates ahead of the"
        " slowest (bounded), or without waiting (asynchronous) (server)",
    )
    staleness: Annotated[int, Field(ge=0)] = Field(
        2, description="updates that a worker may be ahead of the slowest (server, bounded)"
    )
    servers: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="server processes, each with a shard of the weights and the optimizer (server)"
    )
    foresee: bool = Field(
        True,
        description="compute gradients where momentum will have taken the weights by the time they are"
        " applied (server, bounded and asynchronous)",
    )
    damping: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="learning rate of an update that s others came before is divided by 1 + damping * s"
        " (server, bounded and asynchronous)",
    )
    log: bool = Field(
        True,
        description="servers log each update before they apply it, so that a server that dies loses none;"
        " without, the run goes back to its last checkpoint (server)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Sync:
        reason = next(_contradictions(self), None)
        if reason is not None:
            raise ValueError(reason)
        return self

    @property
    def local(self) -> bool:
        """Whether the weights of replicas differ between exchanges."""
        return self.policy in ("local", "timed", "diloco")


def _contradictions(sync: Sync) -> Iterator[str]:
    if sync.policy != "diloco" and (sync.fragments > 1 or sync.delay):
        yield "fragments and delay belong to policy = 'diloco'"
    if sync.fragments > sync.every:
        yield f"{sync.fragments} fragments do not fit into {sync.every} steps"
    if sync.delay >= sync.every:
        yield f"delay {sync.delay} must be shorter than every {sync.every}"
    if sync.compress != "none" and sync.policy == "server":
        yield f"compress = '{sync.compress}' does not go with policy = 'server', which sends whole values"
    if sync.policy != "server" and (sync.mode != "synchronous" or sync.servers > 1):
        yield "mode and servers belong to policy = 'server'"
    if sync.compress == "powersgd" and sync.local:
        yield (
            "compress = 'powersgd' goes with policy = 'every-step' only: what many AdamW steps add up to has"
            " no low rank; use 'bfloat16' or 'top-k'"
        )
