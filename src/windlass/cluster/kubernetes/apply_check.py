"""Compares what an API server stored with what it was sent.

A server may add defaults. It may also drop fields that it does not know or has disabled: a Job would then run
with other rules than requested. That raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from windlass.cluster.kubernetes.labels import Manifest
from windlass.spec.errors import BadInput

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|)")
_SCALE = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_KEYS = ("name", "mountPath", "containerPort", "uid", "type", "key")
"""The keys that identify entries of a list, in order of preference; others are matched by position."""


def check_stored(sent: Manifest, stored: Manifest) -> Manifest:
    """Return what was stored, or raise which fields were dropped or changed."""
    found = list(missing(sent, stored))
    if not found:
        return stored
    what = f"{sent['kind']} {sent['metadata'].get('namespace', '')}/{sent['metadata']['name']}"
    shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
    raise BadInput(
        f"the API server did not store all of {what}: {shown}",
        hint="Kubernetes 1.29 or newer is needed, and no admission webhook that rewrites these fields",
    )


def missing(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield what was sent but not stored, each with its path."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            inner = f"{path}.{key}" if key.isalnum() else f"{path}['{key}']"
            if isinstance(stored, dict) and key in stored:
                yield from missing(value, stored[key], inner)
            elif not _is_empty(value):
                yield f"{inner} was dropped"
    elif isinstance(sent, list):
        yield from _missing_entries(sent, stored if isinstance(stored, list) else [], path)
    elif sent != stored and not _same_quantity(sent, stored):
        yield f"{path} became {stored!r} instead of {sent!r}"


def _missing_entries(sent: list[Any], stored: list[Any], path: str) -> Iterator[str]:
    for at, value in enumerate(sent):
        found = _partner(value, at, stored)
        if found is None:
            yield f"{path}[{at}] was dropped"
        else:
            yield from missing(value, found, f"{path}[{at}]")


def _partner(value: Any, at: int, stored: list[Any]) -> Any:
    key = next((k for k in _KEYS if isinstance(value, dict) and k in value), None)
    if key is not None:
        alike = [s for s in stored if isinstance(s, dict) and s.get(key) == value[key]]
        if len(alike) == 1:
            return alike[0]
    return stored[at] if at < len(stored) else None


def _is_empty(value: Any) -> bool:
    """Whether a server may omit a value. Not false and 0: their defaults may differ."""
    return value is None or value == "" or value == [] or value == {}


def _same_quantity(one: Any, other: Any) -> bool:
    return quantity(one) is not None and quantity(one) == quantity(other)


def quantity(text: Any) -> Decimal | None:
    """Read "500m", "2Gi" or "8" as a number; None for anything else."""
    if isinstance(text, bool):
        return None
    match = _QUANTITY.fullmatch(str(text)) if isinstance(text, str | int | float) else None
    return Decimal(match[1]) * _SCALE[match[2]] if match else None
