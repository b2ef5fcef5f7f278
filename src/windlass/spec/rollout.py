"""The tables [serve.health] and [serve.rollout] of the job file: probes of replicas, and canary roll-outs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from windlass.spec.config_model import ConfigModel, Seconds, Share

Small = Annotated[float, Field(gt=0, lt=0.5)]


class HealthChecks(ConfigModel):
    """How replicas are probed with prompts whose answers are known."""

    every: Seconds = Field(3.0, description="time between two probes of a replica")
    within: Seconds = Field(
        5.0, description="an answer that takes longer is slow; longer times are allowed under load"
    )
    bad: Annotated[int, Field(ge=2, le=50)] = Field(
        2, description="a replica is unhealthy after so many bad answers ..."
    )
    of: Annotated[int, Field(ge=2, le=100)] = Field(4, description="... among the last so many")
    good: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="good answers in a row that make it healthy again"
    )
    restart_after: Seconds = Field(30.0, description="a replica that is slow for so long is restarted")

    remember: bool = Field(
        True, description="compare with the answers of earlier starts; false records them anew, once"
    )

    @model_validator(mode="after")
    def _fits(self) -> HealthChecks:
        if self.bad > self.of:
            raise ValueError(f"bad must be at most of ({self.of}), got {self.bad}")
        return self


class Rollout(ConfigModel):
    """When a new version gets more requests, and when it is rolled back."""

    stages: Annotated[tuple[Share, ...], Field(min_length=1)] = Field(
        (0.05, 0.25, 0.5, 1.0), description="shares of the requests that the new version gets, stage by stage"
    )
    shadow: Share = Field(0.0, description="share of requests that are copied to it before the first stage")
    gate: bool = Field(True, description="compare both versions on built-in prompts before any request")
    requests: Annotated[int, Field(ge=0)] = Field(20, description="minimum number of answers in every stage")
    seconds: Seconds = Field(10.0, description="minimum duration of every stage")
    patience: Seconds = Field(86400.0, description="a roll-out that is undecided for so long is rolled back")
    standby: Seconds = Field(600.0, description="how long the old version stays ready after a promotion")
    false_alarms: Small = Field(
        0.01, description="maximum probability that a version as good as the other is ever rolled back"
    )
    doubt: Small = Field(0.05, description="maximum probability that an unacceptable version is promoted")
    errors: Share = Field(0.02, description="tolerated share of failed answers, beyond the other version's")
    slower: Annotated[float, Field(ge=1)] = Field(
        2.0, description="an answer is slow if it takes so many times as long as the other version's"
    )
    slower_by_s: Annotated[float, Field(ge=0)] = Field(
        0.01, description="... and so much longer, in seconds; a clock is never exact"
    )
    repetition: Share = Field(0.1, description="tolerated share of repeated token pairs, beyond the other's")
    length: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.25, description="answers may be the longer (or shorter) ones half of the time, and so much more"
    )
    held_out: Share = Field(0.05, description="tolerated bits per byte beyond the other's, as a share")

    @model_validator(mode="after")
    def _rises(self) -> Rollout:
        if list(self.stages) != sorted(set(self.stages)) or self.stages[0] <= 0:
            raise ValueError(f"stages {list(self.stages)} must rise, from more than 0 to at most 1")
        return self
