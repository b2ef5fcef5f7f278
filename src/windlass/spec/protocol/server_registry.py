"""Where the processes of a run on parameter servers find each other (docs/formats/server.md)."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

SERVERS = "servers"
"""Folder in a run's directory: the address and key of each server, and its log."""
CANNOT_FOLLOW = 75
"""Exit code of the first server when another has lost updates: all of them must go back to a checkpoint."""


@dataclass(frozen=True)
class ServerAddress:
    """Where one server listens, and the key that a client must send."""

    host: str
    port: int
    key: str
    pid: int


def address_file(folder: Path, number: int) -> Path:
    return folder / SERVERS / f"address-{number}.json"


def log_file(folder: Path, number: int) -> Path:
    return folder / SERVERS / f"log-{number}"


def register_server(folder: Path, number: int, host: str, port: int) -> ServerAddress:
    """Write the address file of a server, readable by this user only."""
    address = ServerAddress(host, port, secrets.token_hex(16), os.getpid())
    file = address_file(folder, number)
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(f".{address.pid}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as target:
        json.dump(asdict(address), target)
    draft.replace(file)
    return address


def read_server_address(folder: Path, number: int) -> ServerAddress | None:
    """Return the address of a server, None if it never registered; the server may have ended since."""
    try:
        return ServerAddress(**json.loads(address_file(folder, number).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
