"""Bearer tokens: how the keys of our APIs are made, kept and sent.

A token is 256 random bits, so its plain digest reveals nothing; only digests are stored. No sender can choose
a part of a digest, so a digest may be looked up; it is compared in constant time (`hmac.compare_digest`).
"""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "wlk_"
"""How every token begins, so that logs can hide it (serve.records.redaction)."""
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]{1,512}) *")


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def bearer_token(authorization: bytes) -> str | None:
    """Return the token of an Authorization header, or None if it is not 'Bearer KEY'."""
    match = _BEARER.fullmatch(authorization)
    return None if match is None else match[1].decode("ascii")
