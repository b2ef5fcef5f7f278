"""Grammars that an engine has used successfully: other engines need not test them in a trial process."""

from __future__ import annotations

from windlass.spec.protocol.wire import Generate, Grammar, Work

MAX_GRAMMARS = 64


class KnownGrammars:
    """The most recent of these grammars."""

    def __init__(self) -> None:
        self._tried: dict[Grammar, None] = {}

    def is_tried(self, request: Work) -> bool:
        return isinstance(request, Generate) and request.grammar in self._tried

    def note(self, request: Work) -> None:
        """Remember the grammar of a request that has produced a token."""
        if isinstance(request, Generate) and request.grammar is not None:
            self._tried[request.grammar] = None
            if len(self._tried) > MAX_GRAMMARS:
                del self._tried[next(iter(self._tried))]
