"""The keys of the control API, with a name and scopes; only their digests are stored.

    HOME/control/keys.json   {"keys": [{"name", "sha256", "scopes", "made", "tenant"}]}, its owner's alone

A key (http.bearer) is shown once, when it is made. Inside a service the only key is that of its gateways,
which is in no file of the home.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from windlass.http.bearer import digest_of, new_token
from windlass.spec.config_model import ConfigModel, Name
from windlass.spec.errors import BadInput, Damaged, InUse, NotFound, did_you_mean
from windlass.store.lock import locked
from windlass.store.store_dir import StoreDir

Scope = Literal["read", "write"]
FILE = "keys.json"
BY = b"x-windlass-by"
"""The header with the name of the caller whose request a gateway forwards."""
GATEWAY = "gateway"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class ControlKey(ConfigModel):
    """One key, as stored."""

    name: Name
    sha256: str
    scopes: tuple[Scope, ...]
    made: float
    tenant: str | None = None
    """The tenant whose data it may access; None: all, it is an administrator's."""


class _File(ConfigModel):
    keys: tuple[ControlKey, ...] = ()


class ControlKeys:
    """The keys of a home. The file is read at every use, so that a dropped key stops working at once."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "control"

    def list(self) -> tuple[ControlKey, ...]:
        file = self._folder / FILE
        try:
            return _File.model_validate_json(file.read_bytes()).keys
        except FileNotFoundError:
            return ()
        except ValidationError:
            raise Damaged(f"{file}: is not a list of keys", hint="remove it to make new ones") from None

    def make(
        self, name: str, *, scopes: tuple[Scope, ...] = ("read", "write"), tenant: str | None = None
    ) -> str:
        """Make a key and return it; it cannot be read again."""
        token = new_token()
        key = {"name": name, "sha256": digest_of(token), "scopes": scopes, "made": round(time.time(), 3)}
        if tenant is not None:
            key["tenant"] = tenant
        with self._locked():
            keys = self.list()
            if any(other.name == name for other in keys):
                raise InUse(
                    f"a key called '{name}' exists already", hint="drop it first, or use another name"
                )
            try:
                self._write((*keys, ControlKey.model_validate(key)))
            except ValidationError:
                raise BadInput(
                    f"'{name}' is not a valid name: a-z, 0-9, '.', '_' and '-', at most 63 characters"
                ) from None
        return token

    def drop(self, name: str) -> None:
        with self._locked():
            keys = self.list()
            if all(key.name != name for key in keys):
                raise NotFound(f"no key called '{name}'", hint=did_you_mean(name, [key.name for key in keys]))
            self._write(tuple(key for key in keys if key.name != name))

    def find(self, token: str) -> ControlKey | None:
        """Return the key of a token; every key is compared, in constant time."""
        digest, found = digest_of(token), None
        for key in self.list():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def _write(self, keys: tuple[ControlKey, ...]) -> None:
        content = {"keys": [key.model_dump(mode="json") for key in keys]}
        with StoreDir(self._folder).writing(FILE) as opened:
            Path(opened.name).chmod(0o600)
            opened.write(json.dumps(content, indent=1).encode())

    def _locked(self) -> AbstractContextManager[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return locked(self._folder / ".lock", "the list of keys")


class GatewayKey:
    """The key of a service's gateways, which have authenticated and authorised the caller."""

    def __init__(self, token: str) -> None:
        self._digest = digest_of(token)

    def find(self, token: str, by: str) -> ControlKey | None:
        """Return a key in the name of the gateway's caller."""
        if not hmac.compare_digest(self._digest, digest_of(token)):
            return None
        name = by if _NAME.fullmatch(by) else GATEWAY
        return ControlKey(name=name, sha256=self._digest, scopes=("read", "write"), made=0.0)
