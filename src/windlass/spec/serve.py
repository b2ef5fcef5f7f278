"""The table [serve] of the job file: how to answer.

Every table is a frozen model that refuses keys it does not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from windlass.spec.table import Bytes, Table


class Serve(Table):
    """How to answer."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8000, description="port to listen on; 0 takes a free one"
    )
    slots: Annotated[int, Field(ge=1, le=1024)] = Field(32, description="requests computed together")
    queue: Annotated[int, Field(ge=0)] = Field(256, description="requests that may wait for a slot")
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
