"""What of a stream was handed on, so that a repeated answer goes on without lost or repeated text.

A broken stream is asked for again, with the same seed and the same version of the model; the service's law
is that the same seed, prompt and settings give the same text (docs/serving.md). What comes is compared with
what was handed on, character by character, and only what follows is new. How the text was cut into pieces
does not matter. A text that is not the same ends the stream with AnswerDiffers: better none than a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.sdk.failures import AnswerDiffers


@dataclass
class Delivery:
    """Counts what one answer brought, over all its connections."""

    resumed: int = 0
    """How often the answer was asked for again."""
    _parts: list[str] = field(default_factory=list)
    _known: str = ""
    """What was handed on before the present connection."""
    _place: int = 0
    """How many of these characters have come again."""

    @property
    def text(self) -> str:
        """All that was handed on."""
        return self._known + "".join(self._parts)

    def again(self) -> None:
        """Begin to read the answer from its first character again."""
        self._known, self._parts, self._place = self.text, [], 0
        self.resumed += 1

    def push(self, piece: str) -> str:
        """Take the next piece of a connection; return what of it is new."""
        known = self._known[self._place : self._place + len(piece)]
        if not piece.startswith(known):
            raise self._differs()
        self._place += len(known)
        new = piece[len(known) :]
        if new:
            self._parts.append(new)
        return new

    def end(self) -> None:
        """Check at the end of an answer that it was no shorter than what was handed on."""
        if self._place < len(self._known):
            raise self._differs()

    def _differs(self) -> AnswerDiffers:
        return AnswerDiffers(
            f"the connection broke after {len(self._known)} characters, and the answer that came when it was "
            f"asked for again differs after {self._place} of them",
            hint="begin anew; texts repeat where all sites run the same version with Windlass' own engine",
        )
