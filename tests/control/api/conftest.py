"""The control API serves runs as `windlass train` writes them down."""

from tests.runs.conftest import finish, start, tell

__all__ = ["finish", "start", "tell"]
