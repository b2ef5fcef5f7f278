"""docs/reference/errors.md: every code of the error envelope, from the table that the gateway reads."""

from __future__ import annotations

from reference_pages.markdown import block, code, head, table, whole
from windlass.http.errors import CODES, Code


def page() -> str:
    """Return the page."""
    lines = head(
        "Errors of the API",
        "Every failure has one envelope ([format](../formats/api-errors.md)) with one of these codes, which"
        " are never renamed. A service shows the same at `/errors/CODE`, without a key and offline.",
    )
    rows = (
        (f"[{code(name)}](#{name})", str(entry.status), code(entry.type), entry.meaning)
        for name, entry in CODES.items()
    )
    lines += table(("code", "status", "type", "meaning"), rows)
    for name, entry in CODES.items():
        lines += _section(name, entry)
    return whole(lines)


def _section(name: str, entry: Code) -> list[str]:
    lines = [f"## {name}", "", f"Status {entry.status}, type {code(entry.type)}. {entry.meaning}", ""]
    if entry.remedy:
        lines += [f"What to do: {entry.remedy}", ""]
    if entry.wrong:
        lines += [f"Refused by `POST {entry.route}`, then accepted:", ""]
        lines += block(f"{entry.wrong}\n{entry.right}")
    return lines
