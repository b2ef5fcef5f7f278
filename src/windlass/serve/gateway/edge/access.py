"""Authentication and authorisation: every path is closed unless PATH_SCOPES lists it.

The raw path is compared before anything is decoded, so percent signs, dots or double slashes, which the
router interprets later, cannot open another path. An ambiguous path is refused to every caller.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from windlass.http.bearer import bearer_token
from windlass.http.errors import ApiError, plain
from windlass.http.headers import RequestHeaders
from windlass.serve.gateway.caller import ADMIN, ANYONE, METRICS, USE, Caller
from windlass.spec.errors import StoreFailed, did_you_mean

OPEN = ""
"""The scope of paths that need no key."""
PATH_SCOPES = {
    b"/": OPEN,
    b"/page/": OPEN,
    b"/errors": OPEN,
    b"/errors/": OPEN,
    b"/healthz": OPEN,
    b"/readyz": OPEN,
    b"/metrics": METRICS,
    b"/openapi.json": USE,
    b"/v1/": USE,
    b"/admin/": ADMIN,
}
"""The scope that a path needs. A path that ends in a slash stands for all paths below it, except the root."""
TENANT_PATHS = (b"/admin/keys", b"/admin/keys/", b"/admin/tenants/", b"/admin/limits")
"""The paths of /admin/ that are open to an administrator of a single tenant, for data of that tenant."""

_PREFIXES = tuple(prefix for prefix in PATH_SCOPES if prefix.endswith(b"/") and prefix != b"/")
_AMBIGUOUS = re.compile(
    rb"//|[\\;\x00-\x20\x7f-\xff]|/\.{1,2}(?:/|$)|%(?:2e|2f|5c|3b|25|[01][0-9a-f]|7f)|%(?![0-9a-f]{2})", re.I
)

log = logging.getLogger(__name__)


class KnownKey(Protocol):
    """What is known of a valid key."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def scopes(self) -> Iterable[str]: ...
    @property
    def shared_prefix(self) -> bool: ...


class KeyLookup(Protocol):
    """The keys of the service."""

    def at_hand(self, token: str) -> KnownKey | None:
        """Return the key of a token from memory, if it is valid now; None if `find` must be called."""

    def find(self, token: str) -> KnownKey | None:
        """Return the key of a token, if it is valid now; this may wait for the database."""


@dataclass
class Access:
    """Who may use this gateway, and from which origins; without `keys`, every caller may."""

    keys: KeyLookup | None = None
    loopback: bool = True
    origins: frozenset[str] = frozenset()
    draining: bool = False
    """Whether new requests are refused, because the gateway is stopping."""


def scope_of(raw_path: bytes) -> str | None:
    """Return the scope that a path needs, OPEN, or None if the path is not listed."""
    if _AMBIGUOUS.search(raw_path):
        return None
    found = PATH_SCOPES.get(raw_path)
    if found is not None:
        return found
    return next((PATH_SCOPES[prefix] for prefix in _PREFIXES if raw_path.startswith(prefix)), None)


async def authorise(raw_path: bytes, sent: RequestHeaders, keys: KeyLookup | None) -> tuple[Caller, str]:
    """Return the caller and its token ("" where none is needed); raise ApiError to refuse.

    A caller without a key gets the same answer for paths that exist and paths that do not.
    """
    needed = scope_of(raw_path)
    if needed == OPEN or keys is None:
        caller, token = ANYONE, ""
    else:
        caller, token = await identify(sent, keys)
    if needed is None:
        raise no_route(raw_path)
    if needed != OPEN and needed not in caller.scopes:
        raise ApiError("forbidden", f"this key lacks the scope '{needed}'")
    if needed == ADMIN and caller.bound and not is_own_route(raw_path):
        raise no_route(raw_path)
    return caller, token


def is_own_route(raw_path: bytes) -> bool:
    """Return whether a path of /admin/ is also open to administrators of a single tenant."""
    return any(
        raw_path == prefix or (prefix.endswith(b"/") and raw_path.startswith(prefix))
        for prefix in TENANT_PATHS
    )


async def identify(sent: RequestHeaders, keys: KeyLookup) -> tuple[Caller, str]:
    """Return the caller of a request and its token, from the Authorization header."""
    given = sent.get(b"authorization")
    if given is None:
        raise ApiError("unauthorized", "this needs a key: send Authorization: Bearer KEY")
    if (times := sent.times(b"authorization")) > 1:
        raise ApiError("unauthorized", f"there are {times} Authorization headers; send one")
    token = bearer_token(given)
    if token is None:
        raise ApiError("unauthorized", "the Authorization header is not 'Bearer KEY'")
    key = await look_up(token, keys)
    if key is None:
        raise ApiError("unauthorized", "this key is not known here, has expired or was revoked")
    return Caller(key.id, key.tenant, frozenset(key.scopes), key.shared_prefix), token


async def look_up(token: str, keys: KeyLookup) -> KnownKey | None:
    """Return the key of a token, if it is valid now; a query to the database runs in a thread."""
    key = keys.at_hand(token)
    if key is not None:
        return key
    try:
        return await asyncio.to_thread(keys.find, token)
    except StoreFailed as error:
        log.warning("%s", error.message)
        message = "the database of keys does not answer, and this key is not in memory"
        raise ApiError("state_unavailable", message, retry_after_s=1.0) from None


def no_route(raw_path: bytes) -> ApiError:
    """Return the error for a path that does not exist."""
    shown = plain(raw_path.decode("latin-1"), 100)
    if _AMBIGUOUS.search(raw_path):
        return ApiError(
            "malformed_request", f"the path {shown} is ambiguous: remove //, dots and encoded characters"
        )
    hint = did_you_mean(shown, [prefix.decode() for prefix in PATH_SCOPES])
    return ApiError("not_found", f"there is no path {shown}; {hint}")
