"""Names of keys and tenants."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from windlass.spec.config_model import Name
from windlass.spec.errors import BadInput

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def checked_name(name: str) -> str:
    """Return the name if it is valid."""
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise BadInput(
            f"{name[:100]!r} is not a valid name: use a-z, 0-9, '.', '_' and '-', at most 63 characters"
        ) from None
