import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from windlass.spec.read import read_job
from windlass.spec.schema import job_schema, job_template


def test_the_template_is_a_valid_job_that_says_the_defaults(tmp_path: Path) -> None:
    written, empty = tmp_path / "a.toml", tmp_path / "b.toml"
    written.write_text(job_template("same"))
    empty.write_text('name = "same"\n')
    assert read_job(written) == read_job(empty)


def test_the_template_satisfies_the_schema() -> None:
    jsonschema.Draft202012Validator(job_schema()).validate(tomllib.loads(job_template("poems")))


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(job_schema())
    for bad in ({"trian": {}}, {"train": {"stepz": 3}}, {"model": {"family": "lama"}}, {"seed": -1}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(bad)


def test_the_schema_takes_quantities_as_people_write_them() -> None:
    job = {"train": {"time": "3m"}, "model": {"parameters": "15M"}}
    jsonschema.Draft202012Validator(job_schema()).validate(job)


def test_every_setting_is_explained() -> None:
    schema = json.loads(json.dumps(job_schema()))
    for name, table in schema["$defs"].items():
        for key, body in table["properties"].items():
            assert body.get("description"), f"{name}.{key}"
