"""Which of the known names was most likely meant by what has been typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from windlass.spec.errors import nearest

HABIT = (
    "model", "messages", "prompt", "input", "role", "content", "max_tokens", "temperature", "stream", "stop",
    "top_p", "seed", "n", "max_completion_tokens", "response_format", "logprobs", "top_k",
    "frequency_penalty", "presence_penalty", "stream_options", "guided_choice", "guided_regex",
    "guided_json", "echo",
)  # fmt: skip
"""The order in which people usually give parameters. It only sorts what the document has."""

MAX_TYPED = 100
"""Longer texts are not half-typed names, and slow to compare."""

MAX_WRONG = 50
"""A text with more wrong names is not meant for this API; each comparison takes a millisecond."""

_PARTS = re.compile(r"[_\-./@: ]")


def by_habit(names: Sequence[str]) -> list[str]:
    """Sort names in their usual order; other names follow in the given order."""
    place = {name: number for number, name in enumerate(HABIT)}
    return sorted(names, key=lambda name: place.get(name, len(HABIT)))


def ranked(typed: str, names: Sequence[str]) -> list[str]:
    """Return the names that may have been meant, the likeliest first, otherwise in the order given.

    Order: names that begin with `typed`, then names with a later part that does, then names that contain its
    letters in order, then similar names.
    """
    if not typed:
        return list(names)
    scored = [(_rank(typed[:MAX_TYPED], name), number, name) for number, name in enumerate(names)]
    found = [name for rank, _, name in sorted(scored) if rank < len(_TESTS)]
    near = None if found else nearest(typed[:MAX_TYPED], list(names))
    return [near] if near is not None else found


def right_name(name: str, names: Sequence[str]) -> str | None:
    """Return the name that a wrong one certainly stands for, None if there is none or it is right."""
    return name if name in names else nearest(name[:MAX_TYPED], list(names))


def right_names(given: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return names after correction; if very many are wrong, only the first are corrected."""
    wrong = [name for name in given if name not in names][:MAX_WRONG]
    meant = {name: right_name(name, names) or name for name in wrong}
    return [meant.get(name, name) for name in given]


def _rank(typed: str, name: str) -> int:
    return next((rank for rank, test in enumerate(_TESTS) if test(typed, name)), len(_TESTS))


def _in_order(typed: str, name: str) -> bool:
    letters = iter(name.lower())
    return (
        len(typed) > 1 and name[:1].lower() == typed[:1].lower() and all(c in letters for c in typed.lower())
    )


_TESTS: tuple[Callable[[str, str], bool], ...] = (
    lambda typed, name: name == typed,
    lambda typed, name: name.startswith(typed),
    lambda typed, name: name.lower().startswith(typed.lower()),
    lambda typed, name: any(part.lower().startswith(typed.lower()) for part in _PARTS.split(name)),
    lambda typed, name: len(typed) > 2 and typed.lower() in name.lower(),
    _in_order,
)
