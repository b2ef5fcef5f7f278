"""Every error that Windlass raises on purpose.

    WindlassError                exit code 1: a fault of Windlass or of the machine
    |-- AskedWrongly             exit code 2: the user can correct it
    |   |-- BadJob               the job file
    |   |-- BadInput             a corpus, model directory, option or argument
    |   |-- NotFound             a name that does not exist
    |   `-- InUse                a name or port that is taken
    |-- Damaged                  stored bytes that differ from their manifest
    |-- StoreFailed              bytes that could not be read or written
    `-- ProcessFailed            a child process that died

The message says what and where; the hint says what would be right.
"""

from __future__ import annotations


class WindlassError(Exception):
    """The root: a message, a hint, and the exit code of a command that fails with it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n    {self.hint}"


class AskedWrongly(WindlassError):
    """The user's request is invalid or impossible; a different request can succeed."""

    exit_code = 2


class BadJob(AskedWrongly):
    """The job file is invalid."""


class BadInput(AskedWrongly):
    """A corpus, a model directory, an option or an argument is not usable."""


class NotFound(AskedWrongly):
    """A name that does not exist."""


class InUse(AskedWrongly):
    """A name, a port or a version that something else holds."""


class Damaged(WindlassError):
    """Stored bytes differ from what their manifest says."""


class StoreFailed(WindlassError):
    """The store could not read or write: disk full, no permission, no answer."""


class ProcessFailed(WindlassError):
    """A child process failed."""


def nearest(name: str, allowed: list[str]) -> str | None:
    """Return the allowed name closest to a misspelt one, or None when none is close."""
    import difflib

    found = difflib.get_close_matches(name.lower(), [a.lower() for a in allowed], n=1, cutoff=0.6)
    if not found:
        return None
    return next(a for a in allowed if a.lower() == found[0])


def did_you_mean(name: str, allowed: list[str]) -> str:
    """Return a hint with the nearest allowed name, or with all of them when none is near."""
    close = nearest(name, allowed)
    if close is not None:
        return f"did you mean '{close}'?"
    return "allowed here: " + ", ".join(sorted(allowed)) if allowed else "nothing is allowed here"
