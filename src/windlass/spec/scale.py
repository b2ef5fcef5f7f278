"""The table [serve.scale] of the job file: autoscaling of replicas by load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from windlass.spec.config_model import Bytes, ConfigModel, Seconds

Load = Annotated[float, Field(gt=0, le=1)]


class Scale(ConfigModel):
    """When a replica is added, and when one is removed."""

    min_replicas: Annotated[int, Field(ge=0)] = Field(
        1, description="replicas that always run; 0 stops a version that gets no requests"
    )
    max_replicas: Annotated[int, Field(ge=1)] | None = Field(
        None, description="maximum number of replicas; as many as cores and memory allow if left out"
    )
    load: Load = Field(0.75, description="target share of a replica's slots that are in use")
    queue_time: Seconds = Field(1.0, description="a replica is added when requests wait longer for a slot")
    first_token: Seconds | None = Field(
        None, description="a replica is added when 1 of 20 answers takes longer to its first token"
    )
    calm: Seconds = Field(300.0, description="a replica is removed after the load was low for so long")
    cooldown: Seconds = Field(
        30.0, description="minimum time between two replicas that are added for slow answers alone"
    )
    cores: Annotated[int, Field(ge=1)] = Field(1, description="minimum cores for each replica")
    memory: Bytes | None = Field(
        None, description="memory of one replica, e.g. '4GiB'; as much as running replicas take if left out"
    )

    @model_validator(mode="after")
    def _fits(self) -> Scale:
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas must be at most max_replicas ({self.max_replicas}), got {self.min_replicas}"
            )
        return self
