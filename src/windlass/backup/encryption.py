"""Compresses the objects of a backup, and encrypts them if a secret is given.

    secret -> scrypt -> decrypts the backup's own key -> a key for names and a key for data (HKDF)

The backup's own key is random, so the secret can be any text or file. Each object is encrypted by AES-256-GCM
with a random nonce and its name as associated data, so the store can neither read, change nor swap objects.
Names of chunks are keyed digests: a reader of the store cannot tell which known files it holds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Any

import zstandard

from windlass.spec.errors import BadInput, Damaged

PACKED, SEALED = 1, 2
LEVEL = 3
NONCE_BYTES = 12
SCRYPT = {"n": 1 << 15, "r": 8, "p": 1}
MAX_N = 1 << 20
"""Larger scrypt costs (over a gigabyte of memory) are rejected as a forged header."""
PURPOSE = b"windlass-backup-1 "


@dataclass(frozen=True)
class BackupKeys:
    """The keys of a backup. They are never printed."""

    names: bytes
    data: bytes

    def __repr__(self) -> str:
        return "Keys(...)"


class Codec:
    """Encodes objects for the store, and decodes them."""

    def __init__(self, keys: BackupKeys | None = None) -> None:
        self._keys = keys

    def digest(self, data: bytes) -> str:
        """Return the name of a content: its SHA-256, keyed (HMAC) in an encrypted backup."""
        if self._keys is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.new(self._keys.names, data, hashlib.sha256).hexdigest()

    def pack(self, data: bytes, name: str) -> bytes:
        """Return the bytes to store under `name`."""
        smaller = zstandard.ZstdCompressor(level=LEVEL).compress(data)
        form, body = (PACKED, smaller) if len(smaller) < len(data) else (0, data)
        if self._keys is None:
            return bytes([form]) + body
        form |= SEALED
        return bytes([form]) + _seal(self._keys.data, body, _bound(form, name))

    def unpack(self, stored: bytes, name: str, where: str) -> bytes:
        """Return the original bytes; raise Damaged if the stored ones are not what `pack` wrote."""
        form, body = stored[:1], stored[1:]
        if not form or form[0] > (PACKED | SEALED) or bool(form[0] & SEALED) != (self._keys is not None):
            raise Damaged(f"{where}: is not an object of this backup")
        if self._keys is not None:
            opened = _open(self._keys.data, body, _bound(form[0], name))
            if opened is None:
                raise Damaged(f"{where}: the bytes differ from those written")
            body = opened
        if not form[0] & PACKED:
            return body
        try:
            return zstandard.ZstdDecompressor().decompress(body)
        except zstandard.ZstdError:
            raise Damaged(f"{where}: the bytes differ from those written") from None


def new_lock(secret: bytes) -> tuple[dict[str, Any], BackupKeys]:
    """Create a backup's own key; return the header with the key encrypted by the secret, and the keys."""
    salt, key = os.urandom(16), os.urandom(32)
    closed = _seal(_derived(secret, salt, SCRYPT), key, PURPOSE + b"key")
    header = {"kdf": "scrypt", **SCRYPT, "salt": _text(salt), "key": _text(closed)}
    return header, _keys(key)


def unlock(header: dict[str, Any], secret: bytes, where: str) -> BackupKeys:
    """Return the keys of a backup; raise BadInput if the secret is wrong."""
    try:
        costs = {name: int(header[name]) for name in SCRYPT}
        salt, closed = base64.b64decode(header["salt"]), base64.b64decode(header["key"])
        if header["kdf"] != "scrypt" or not 2 <= costs["n"] <= MAX_N:
            raise ValueError
    except (KeyError, ValueError, TypeError):
        raise Damaged(f"{where}: its key cannot be read") from None
    key = _open(_derived(secret, salt, costs), closed, PURPOSE + b"key")
    if key is None:
        raise BadInput(
            f"{where}: wrong key for this backup",
            hint="use the key file or passphrase with which the backup was created",
        )
    return _keys(key)


def _keys(key: bytes) -> BackupKeys:
    return BackupKeys(_part(key, b"names"), _part(key, b"data"))


def _part(key: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose: HKDF-Expand (RFC 5869) of a random key."""
    return hmac.new(key, PURPOSE + purpose + b"\x01", hashlib.sha256).digest()


def _derived(secret: bytes, salt: bytes, costs: dict[str, int]) -> bytes:
    memory = 256 * costs["n"] * costs["r"]
    return hashlib.scrypt(secret, salt=salt, **costs, maxmem=memory, dklen=32)


def _bound(form: int, name: str) -> bytes:
    return PURPOSE + bytes([form]) + name.encode()


def _seal(key: bytes, data: bytes, bound: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + bytes(_aes(key).encrypt(nonce, data, bound))


def _open(key: bytes, data: bytes, bound: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(_aes(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound))
    except (InvalidTag, ValueError):  # ValueError: a truncated nonce
        return None


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise BadInput(
            "an encrypted backup needs the package cryptography, which is not installed",
            hint="pip install 'windlass[backup]'",
        ) from None
    return AESGCM(key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
