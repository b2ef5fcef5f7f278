"""Quantities as people write them: "80GiB", "3d", "15M", "50%".

Input: text from a job file or the command line. Output: plain numbers in base units (bytes, seconds,
counts), and back to text for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BYTES: Mapping[str, float] = {
    "": 1, "B": 1,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip
SECONDS: Mapping[str, float] = {
    "": 1, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800,
}  # fmt: skip
COUNTS: Mapping[str, float] = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

MAX_QUANTITY = 1e30
"""Larger than any real quantity; beyond it a later sum could become infinite."""

_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int | float) -> int:
    """Read "80GiB" or a bare number of bytes."""
    return round(_parse(text, BYTES, "a size in bytes", "80GiB"))


def parse_seconds(text: str | int | float) -> float:
    """Read "3d", "1h30m" or a bare number of seconds."""
    if isinstance(text, str):
        parts = re.findall(r"[0-9][0-9_.]*\s*[A-Za-z]+", text)
        if len(parts) > 1 and "".join(parts).replace(" ", "") == text.replace(" ", ""):
            return sum(_parse(part, SECONDS, "a duration", "1h30m") for part in parts)
    return _parse(text, SECONDS, "a duration", "1h30m")


def parse_count(text: str | int | float) -> int:
    """Read "15M" or a bare number."""
    return round(_parse(text, COUNTS, "a count", "15M"))


def _parse(text: str | int | float, units: Mapping[str, float], what: str, example: str) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"that is not {what}; write it like {example!r}")
    if isinstance(text, int | float):
        if not 0 <= text <= MAX_QUANTITY:
            raise ValueError(f"{text} is not {what}; it must be a finite number, zero or more")
        return float(text)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {what}; write it like {example!r}")
    number, unit = match.groups()
    if unit not in units:
        known = [u for u in units if u]
        close = next((u for u in known if u.lower() == unit.lower()), None)
        advice = f"did you mean {number + close!r}?" if close else "units here: " + ", ".join(known)
        raise ValueError(f"{text!r} is not {what}: unknown unit {unit!r}; {advice}")
    value = float(number.replace("_", "")) * units[unit]
    if value > MAX_QUANTITY:
        raise ValueError(f"{text!r} is not {what}: it is too large")
    return value


def format_bytes(size: float) -> str:
    """Write a size for people: "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit always returns")


def format_count(number: float) -> str:
    """Write a count for people: "15.3M"."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.3g}" if number != int(number) else str(int(number))


def format_seconds(seconds: float) -> str:
    """Write a duration for people: "2h 05m", "3.2s"."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
