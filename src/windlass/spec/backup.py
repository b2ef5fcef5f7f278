"""HOME/backup.toml: where a home is backed up to, how often, and how long snapshots are kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from windlass.spec.config_model import Bytes, ConfigModel, Seconds

FILE = "backup.toml"


class Keep(ConfigModel):
    """How many snapshots are kept, by age. The newest always is."""

    last: Annotated[int, Field(ge=1)] = Field(7, description="the newest so many")
    daily: Annotated[int, Field(ge=0)] = Field(7, description="the last of each of so many days")
    weekly: Annotated[int, Field(ge=0)] = Field(4, description="the last of each of so many weeks")
    monthly: Annotated[int, Field(ge=0)] = Field(12, description="the last of each of so many months")


class Backup(ConfigModel):
    """How a home is backed up."""

    url: str | None = Field(None, description="where to: a directory or a store URL, e.g. 's3://bucket/home'")
    every: Seconds = Field(3600.0, description="time between two snapshots of the schedule, e.g. '1h'")
    key_file: str | None = Field(
        None, description="file whose content encrypts the backup; the variable WINDLASS_BACKUP_KEY does, too"
    )
    corpora: bool = Field(
        False, description="keep the tokens of corpora as well, not only what describes them"
    )
    rate: Bytes | None = Field(None, description="maximum bytes to send in a second, e.g. '20MiB'")
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(4, description="chunks in transfer at once")
    keep: Keep = Field(Keep(), description="how many snapshots are kept")
