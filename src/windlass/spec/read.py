"""Reads a job file, and says what is wrong with it in one sentence per mistake.

Input: a TOML file, and overrides from the command line ("train.steps=100").
Output: a Job. Paths in the file are relative to the file, so a job works from any directory.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from windlass.spec.errors import BadJob, NotFound, did_you_mean
from windlass.spec.job import STDLIB, Job

M = TypeVar("M", bound=BaseModel)


def read_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Job:
    """Read, check and anchor a job file."""
    where = Path(path)
    data = {"name": name_from(where), **read_toml(where)}
    return job_from(data, overrides, str(path), where.resolve().parent)


def job_from(data: dict[str, Any], overrides: Sequence[str], where: str, folder: Path) -> Job:
    """Build a job from tables of any origin; relative paths are relative to `folder`."""
    for override in overrides:
        override_in(data, override)
    return anchored(parse(Job, data, where), folder)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file", hint="`windlass init` writes a commented job file") from None
    except IsADirectoryError:
        raise NotFound(f"{path}: is a directory, not a job file") from None
    except UnicodeDecodeError as error:
        raise BadJob(f"{path}: byte {error.start} is not UTF-8; a job file is a TOML text") from None
    except OSError as error:
        raise BadJob(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"{path}: not valid TOML: {error}") from None


def parse(model: type[M], data: Any, where: str) -> M:
    """Check `data` against `model`; every mistake becomes a line that names file, table and key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        mistakes = [_explain(model, detail) for detail in error.errors()]
    message, hint = mistakes[0]
    others = [f"also: {m}" + (f" ({h})" if h else "") for m, h in mistakes[1:]]
    hints = ([hint] if hint else []) + others
    raise BadJob(f"{where}: {message}", hint="\n    ".join(hints) or None)


def anchored(job: Job, folder: Path) -> Job:
    """Make relative paths in the job absolute; they are relative to the folder that holds the file."""
    corpus = job.corpus
    tokenizer = corpus.tokenizer
    if tokenizer.path is not None:
        tokenizer = tokenizer.model_copy(update={"path": _absolute(tokenizer.path, folder)})
    sources = tuple(_absolute(source, folder) for source in corpus.sources)
    return job.model_copy(
        update={"corpus": corpus.model_copy(update={"sources": sources, "tokenizer": tokenizer})}
    )


def _absolute(source: str, folder: Path) -> str:
    if source == STDLIB or "://" in source:
        return source
    return os.path.normpath(folder / os.path.expanduser(source))


def name_from(path: Path) -> str:
    """Return the job name that a file's own name suggests."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem.lower())
    return kept.lstrip("._-")[:63] or "job"


def override_in(data: dict[str, Any], override: str) -> None:
    """Put "table.key=value" into the tables; the value is TOML, or else taken as a bare string."""
    dotted, equals, value = override.partition("=")
    if not equals or not dotted.strip():
        raise BadJob(f"--set {override}: write it as table.key=value", hint="example: --set train.steps=100")
    *tables, key = dotted.strip().split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise BadJob(f"--set {override}: '{table}' is a value, not a table")
    try:
        data[key] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        data[key] = value.strip()


def _explain(model: type[BaseModel], detail: ErrorDetails) -> tuple[str, str | None]:
    tables, key = _place(detail["loc"], Job if model is Job else None)
    table = f"[{'.'.join(tables)}] " if tables else ""
    if detail["type"] == "extra_forbidden":
        return f"{table}unknown key '{key}'", did_you_mean(key, _keys(model, tables))
    reason = _plain(detail)
    if detail["type"] == "value_error" and not key:
        return f"{table}{reason}", None
    return f"{table}{key}: {reason}".strip(), None


def _place(loc: tuple[int | str, ...], model: type[BaseModel] | None) -> tuple[list[str], str]:
    """Split an error's location: leading names that are tables of `model`, and the key."""
    tables: list[str] = []
    names = list(loc)
    while names and isinstance(names[0], str) and model is not None:
        field = model.model_fields.get(names[0])
        inner = _table_type(field.annotation) if field is not None else None
        if inner is None:
            break
        tables.append(names.pop(0))  # type: ignore[arg-type]
        model = inner
    key = ""
    for name in names:
        key += f"[{name}]" if isinstance(name, int) else (f".{name}" if key else str(name))
    return tables, key


def _table_type(annotation: Any) -> type[BaseModel] | None:
    for part in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _keys(model: type[BaseModel], tables: list[str]) -> list[str]:
    for name in tables:
        inner = _table_type(model.model_fields[name].annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _plain(detail: ErrorDetails) -> str:
    """Say what is wrong with a value, without the validator's own jargon."""
    given = repr(detail["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case "literal_error":
            wanted = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
            return f"{given} is not one of its values; {did_you_mean(str(detail['input']), wanted)}"
        case "string_pattern_mismatch":
            return f"{given} may hold only a-z, 0-9, '.', '_' and '-', and at most 63 of them"
        case "missing":
            return "is missing"
        case _:
            return f"{given} is not right: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def job_text(job: Job, *, short: bool = False, given: bool = False) -> str:
    """Return a job file with every setting, one table a line; unset keys are left out.

    `short` leaves out values that equal their default; `given` writes only keys that were set explicitly.
    """
    body = job.model_dump(mode="json", exclude_none=True, exclude_defaults=short, exclude_unset=given)
    return "".join(f"{key} = {_toml(value)}\n" for key, value in body.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
