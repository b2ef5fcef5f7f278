"""What a service keeps about its users, and for how long. By default it keeps no prompts."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from windlass.spec.config_model import ConfigModel, Seconds

DAY_S = 86400.0


class Privacy(ConfigModel):
    """What is kept, and for how long."""

    prompt_log: Path | None = Field(
        None,
        description="directory that gets every prompt, a file for each day; none is kept if left out",
    )
    redact: bool = Field(
        True,
        description="take e-mail and IP addresses, telephone, card and bank numbers out of prompts",
    )
    keep_prompts: Seconds = Field(
        30 * DAY_S, description="after so long, days of the prompt log are deleted, e.g. '30d'"
    )
    keep_audit: Seconds | None = Field(
        None, description="after so long, records of the audit log are folded; never if left out"
    )
