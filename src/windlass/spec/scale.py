"""The table [serve.scale] of the job file: how many replicas, by how much is asked for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from windlass.spec.config_model import Bytes, ConfigModel, Seconds

Load = Annotated[float, Field(gt=0, le=1)]


class Scale(ConfigModel):
    """When a replica is added, and when one is let go."""

    least: Annotated[int, Field(ge=0)] = Field(
        1, description="replicas that always run; 0 lets a version end that nobody asks for"
    )
    most: Annotated[int, Field(ge=1)] | None = Field(
        None, description="never more than this; as many as cores and memory allow if left out"
    )
    load: Load = Field(0.75, description="part of a replica's slots that should be taken")
    queue_time: Seconds = Field(1.0, description="a replica is added when requests wait longer for a slot")
    first_token: Seconds | None = Field(
        None, description="a replica is added when 1 of 20 answers begins later than this"
    )
    calm: Seconds = Field(300.0, description="a replica leaves after the load was low for so long")
    cooldown: Seconds = Field(
        30.0, description="least time between two replicas that are added for slow answers alone"
    )
    cores: Annotated[int, Field(ge=1)] = Field(1, description="least cores for each replica")
    memory: Bytes | None = Field(
        None, description="memory of one replica, e.g. '4GiB'; as much as those that run take if left out"
    )

    @model_validator(mode="after")
    def _fits(self) -> Scale:
        if self.most is not None and self.least > self.most:
            raise ValueError(f"least ({self.least}) cannot be more than most ({self.most})")
        return self
