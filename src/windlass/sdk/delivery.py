"""Resumes a broken stream without lost or repeated text.

A broken stream is requested again, with the same seed and the same version of the model; the service
guarantees that the same seed, prompt and settings give the same text (docs/serving.md). The new text is
compared with the delivered text, character by character, and only what follows is delivered. How the text is
divided into pieces does not matter. If the texts differ, the stream ends with AnswerDiffers rather than with
a wrong text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.sdk.failures import AnswerDiffers


@dataclass
class Delivery:
    """Tracks the delivered text of one answer, over all its connections."""

    resumed: int = 0
    """How often the answer was requested again."""
    _parts: list[str] = field(default_factory=list)
    _known: str = ""
    """The text delivered before the present connection."""
    _place: int = 0
    """How many of these characters the present connection has repeated."""

    @property
    def text(self) -> str:
        """All delivered text."""
        return self._known + "".join(self._parts)

    def again(self) -> None:
        """Begin to read the answer from its first character again."""
        self._known, self._parts, self._place = self.text, [], 0
        self.resumed += 1

    def push(self, piece: str) -> str:
        """Take the next piece of a connection; return the new part of it."""
        known = self._known[self._place : self._place + len(piece)]
        if not piece.startswith(known):
            raise self._differs()
        self._place += len(known)
        new = piece[len(known) :]
        if new:
            self._parts.append(new)
        return new

    def end(self) -> None:
        """Check at the end of an answer that it is no shorter than the delivered text."""
        if self._place < len(self._known):
            raise self._differs()

    def _differs(self) -> AnswerDiffers:
        return AnswerDiffers(
            f"the connection broke after {len(self._known)} characters, and the repeated answer"
            f" differs after {self._place} of them",
            hint="start again; answers repeat if all sites run the same version with Windlass' own engine",
        )
