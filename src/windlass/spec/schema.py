"""The job file explained to editors (JSON Schema) and to people (a commented file to start from).

Both are made from the descriptions in job.py, so they cannot fall behind it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from windlass.spec.job import Job

SCHEMA_ID = "windlass-job.schema.json"


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file (draft 2020-12)."""
    schema = Job.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def job_template(name: str) -> str:
    """Return a job file with every key, its meaning and its default; unset keys are commented out."""
    head = [
        "# A Windlass job: what to train, on what text, for how long, and how to serve it.",
        "# Every line can be left out; what is commented out, the planner decides.",
        "",
    ]
    return "\n".join(head + _table(Job, (), {"name": name})) + "\n"


def _table(model: type[BaseModel], path: tuple[str, ...], given: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    tables: list[tuple[str, FieldInfo, type[BaseModel]]] = []
    for key, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            tables.append((key, field, type(field.default)))
            continue
        value = given.get(key, field.default)
        lines.append(f"# {field.description}{_choices(field)}")
        lines.append(f"# {key} =" if value is None else f"{key} = {_toml(value)}")
    for key, field, inner in tables:
        inner_path = (*path, key)
        lines += ["", f"# {field.description}", f"[{'.'.join(inner_path)}]"]
        lines += _table(inner, inner_path, {})
    return lines


def _choices(field: FieldInfo) -> str:
    values = getattr(field.annotation, "__args__", ())
    if values and all(isinstance(v, str) for v in values):
        return f" ({', '.join(values)})"
    return ""


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value)
