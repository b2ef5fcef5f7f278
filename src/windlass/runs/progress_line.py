"""A progress line on standard error: drawn over itself on a terminal, printed every few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from windlass.spec.protocol.progress import Progress
from windlass.spec.units import format_bytes, format_count, format_seconds

DRAW_EVERY_S = 0.1
PRINT_EVERY_S = 5.0


class ProgressLine:
    """A Report that draws one line per stage, with rate and time left."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._stage: str | None = None
        self._since = self._shown_at = 0.0
        self._first_done = 0.0
        self._drawn = False

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if progress.stage != self._stage:
            self.close()
            self._stage, self._since, self._first_done, self._shown_at = (
                progress.stage,
                now,
                progress.done,
                0.0,
            )
        whole = progress.total is not None and progress.done >= progress.total
        if not whole and now - self._shown_at < (DRAW_EVERY_S if self._live else PRINT_EVERY_S):
            return
        self._shown_at = now
        self._show(self._text(progress, now - self._since))

    def say(self, text: str) -> None:
        """Print a line that stays, above the progress line."""
        if not self._quiet:
            self._wipe()
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the last line standing."""
        if self._drawn and self._live:
            print(file=sys.stderr)
        self._drawn = False
        self._stage = None

    def _show(self, text: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print("\r\x1b[K" + text[:width], end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _wipe(self) -> None:
        if self._drawn and self._live:
            print("\r\x1b[K", end="", file=sys.stderr)
            self._drawn = False

    def _text(self, p: Progress, seconds: float) -> str:
        parts = [f"{p.stage:<10}", _amount(p)]
        moved = p.done - self._first_done
        rate = moved / seconds if seconds > 0.5 and moved > 0 else None
        if rate is not None and p.unit:
            parts.append(f"{_number(rate, p.unit)}/s")
        parts += [f"{key} {value}" for key, value in p.note.items()]
        if rate is not None and p.total is not None:
            left = (p.total - p.done) / rate
            parts.append(f"{format_seconds(left)} left" if left > 0 else f"took {format_seconds(seconds)}")
        return "  ".join(parts)


def _amount(p: Progress) -> str:
    if p.total is None:
        return _number(p.done, p.unit)
    share = p.done / p.total if p.total else 1.0
    filled = round(20 * min(1.0, share))
    return f"{'#' * filled}{'.' * (20 - filled)} {share:4.0%}  {_number(p.done, p.unit)}"


def _number(value: float, unit: str) -> str:
    if unit == "B":
        return format_bytes(value)
    return f"{format_count(round(value, 1))} {unit}".strip()
