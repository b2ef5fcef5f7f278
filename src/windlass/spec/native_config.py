"""The config.json of families that only Windlass has: mlp, ngram, hmm.

It has the same place and the same `model_type` key as Hugging Face's, so that one look at a directory
tells what is in it. Its other fields are exactly those of the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from windlass.spec.errors import BadInput
from windlass.spec.shape import HmmShape, MlpShape, NgramShape, Shape

PREFIX = "windlass-"
Own = MlpShape | NgramShape | HmmShape
_SHAPE: TypeAdapter[Shape] = TypeAdapter(Shape)
_BESIDE = ("model_type", "architectures", "dtype", "bos_token_id", "eos_token_id", "pad_token_id")


def is_own(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type", "")).startswith(PREFIX)


def own_shape(config: Mapping[str, Any], where: str) -> Own:
    """Read a shape; `where` names the file in errors."""
    fields = {key: value for key, value in config.items() if key not in _BESIDE}
    fields["family"] = str(config["model_type"]).removeprefix(PREFIX)
    try:
        shape = _SHAPE.validate_python(fields)
    except ValidationError as error:
        detail = error.errors()[0]
        field = ".".join(str(part) for part in detail["loc"])
        raise BadInput(f"{where}: {field + ': ' if field else ''}{detail['msg']}") from None
    if not isinstance(shape, Own):
        raise BadInput(f"{where}: model_type '{config['model_type']}' is not one of Windlass's own families")
    return shape


def own_fields(shape: Own) -> dict[str, Any]:
    """Return what `own_shape` reads."""
    fields = shape.model_dump(mode="json", exclude={"family"})
    return {"model_type": f"{PREFIX}{shape.family}", **fields}
