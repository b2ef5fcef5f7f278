"""What every table of a job file has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of the job file: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
