"""Writes a job back as the TOML file that it could have been read from."""

from __future__ import annotations

import json
from typing import Any

from windlass.spec.job import Job


def job_text(job: Job, *, short: bool = False, given: bool = False) -> str:
    """Return a job file with every setting, a table on a line; what is left open stays open.

    A `short` one leaves out what is as it would be anyway; with `given` it has what the file had.
    """
    body = job.model_dump(mode="json", exclude_none=True, exclude_defaults=short, exclude_unset=given)
    return "".join(f"{key} = {_toml(value)}\n" for key, value in body.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
