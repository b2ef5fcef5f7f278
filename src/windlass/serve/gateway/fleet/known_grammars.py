"""Forms by which an engine has written: no other engine needs to try them for harm first."""

from __future__ import annotations

from windlass.spec.protocol.wire import Generate, Grammar, Work

MAX_FORMS = 64


class Forms:
    """The latest of them."""

    def __init__(self) -> None:
        self._tried: dict[Grammar, None] = {}

    def is_tried(self, request: Work) -> bool:
        return isinstance(request, Generate) and request.grammar in self._tried

    def note(self, request: Work) -> None:
        """Remember the form of a request that has gained a token."""
        if isinstance(request, Generate) and request.grammar is not None:
            self._tried[request.grammar] = None
            if len(self._tried) > MAX_FORMS:
                del self._tried[next(iter(self._tried))]
