"""Who may pass: every path is closed until DOORS names it, and decided on as it was sent.

The raw path is compared, before anything is decoded: what the router makes of it later (percent signs, dots,
double slashes) can open no other door. A path that could be read in two ways is refused to everybody.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from windlass.http.errors import ApiError, plain
from windlass.http.headers import RequestHeaders
from windlass.serve.gateway.caller import ADMIN, ANYONE, METRICS, USE, Caller
from windlass.spec.errors import StoreFailed, did_you_mean

OPEN = ""
"""The scope of what everybody may see."""
DOORS = {
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
"""The scope that a path needs. A door that ends in a slash stands for all below it, but for the root."""
OWN_DOORS = (b"/admin/keys", b"/admin/keys/", b"/admin/tenants/", b"/admin/limits")
"""Where an administrator of one tenant finds what is that tenant's; no other door of /admin/ opens to it."""

_BELOW = tuple(door for door in DOORS if door.endswith(b"/") and door != b"/")
_DOUBTFUL = re.compile(
    rb"//|[\\;\x00-\x20\x7f-\xff]|/\.{1,2}(?:/|$)|%(?:2e|2f|5c|3b|25|[01][0-9a-f]|7f)|%(?![0-9a-f]{2})", re.I
)
_TOKEN = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]{1,512}) *")

log = logging.getLogger(__name__)


class KnownKey(Protocol):
    """What is known of a key that is good right now."""

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
        """Return the key that a token is from memory, if it is good now; None where `find` must be asked."""

    def find(self, token: str) -> KnownKey | None:
        """Return the key that a token is, if it is good now; this may wait for a server."""


@dataclass
class Access:
    """How this gateway may be reached, and by whom; without `keys`, by anyone."""

    keys: KeyLookup | None = None
    loopback: bool = True
    origins: frozenset[str] = frozenset()
    draining: bool = False
    """Whether new requests are sent away, because the gateway stops."""


def scope_of(raw_path: bytes) -> str | None:
    """Return the scope that a path needs, OPEN, or None if no door leads there."""
    if _DOUBTFUL.search(raw_path):
        return None
    found = DOORS.get(raw_path)
    if found is not None:
        return found
    return next((DOORS[door] for door in _BELOW if raw_path.startswith(door)), None)


async def admit(raw_path: bytes, sent: RequestHeaders, keys: KeyLookup | None) -> tuple[Caller, str]:
    """Return who asks, and the token that says so ("" where none is needed); or refuse.

    Whoever has no key learns nothing about which paths exist.
    """
    needed = scope_of(raw_path)
    if needed == OPEN or keys is None:
        caller, token = ANYONE, ""
    else:
        caller, token = await identify(sent, keys)
    if needed is None:
        raise no_route(raw_path)
    if needed != OPEN and needed not in caller.scopes:
        raise ApiError("forbidden", f"this key may not do that: it lacks the scope '{needed}'")
    if needed == ADMIN and caller.bound and not is_own_route(raw_path):
        raise no_route(raw_path)
    return caller, token


def is_own_route(raw_path: bytes) -> bool:
    """Tell whether a path of /admin/ is for administrators of one tenant, too."""
    return any(raw_path == door or (door.endswith(b"/") and raw_path.startswith(door)) for door in OWN_DOORS)


async def identify(sent: RequestHeaders, keys: KeyLookup) -> tuple[Caller, str]:
    """Return whose key came with a request, and the key."""
    given = sent.get(b"authorization")
    if given is None:
        raise ApiError("unauthorized", "this needs a key: send Authorization: Bearer KEY")
    if (times := sent.times(b"authorization")) > 1:
        raise ApiError("unauthorized", f"there are {times} Authorization headers; send one")
    match = _TOKEN.fullmatch(given)
    if match is None:
        raise ApiError("unauthorized", "the Authorization header is not 'Bearer KEY'")
    token = match[1].decode("ascii")
    key = await look_up(token, keys)
    if key is None:
        raise ApiError("unauthorized", "this key is not known here, has expired or was revoked")
    return Caller(key.id, key.tenant, frozenset(key.scopes), key.shared_prefix), token


async def look_up(token: str, keys: KeyLookup) -> KnownKey | None:
    """Return the key that a token is, if it is good now; others are answered while a server is asked."""
    key = keys.at_hand(token)
    if key is not None:
        return key
    try:
        return await asyncio.to_thread(keys.find, token)
    except StoreFailed as error:
        log.warning("%s", error.message)
        told = "the database of keys does not answer, and this key is not in memory"
        raise ApiError("state_unavailable", told, retry_after_s=1.0) from None


def no_route(raw_path: bytes) -> ApiError:
    """Return the refusal of a path that is in no table."""
    shown = plain(raw_path.decode("latin-1"), 100)
    if _DOUBTFUL.search(raw_path):
        return ApiError("malformed_request", f"the path {shown} could be read in two ways")
    hint = did_you_mean(shown, [door.decode() for door in DOORS])
    return ApiError("not_found", f"there is no path {shown}; {hint}")
