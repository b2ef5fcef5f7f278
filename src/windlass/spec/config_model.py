"""The base class of every table in a configuration file, and the types of its values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from windlass.spec.units import parse_bytes, parse_count, parse_seconds

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=1)]
Count = Annotated[int, BeforeValidator(parse_count, json_schema_input_type=int | str), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=float | str), Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class ConfigModel(BaseModel):
    """A table of a configuration file: immutable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
