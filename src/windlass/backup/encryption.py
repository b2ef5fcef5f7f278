"""How the bytes of a backup are packed, and sealed where a secret is given.

    secret -> scrypt -> opens the backup's own key -> one key for names, one for bytes (HKDF)

The backup's own key is random, so the secret can be any text or file. Each object is sealed by AES-256-GCM
under a random nonce and bound to its name, so that the store can neither read, change nor exchange one.
Names of chunks are keyed digests: whoever looks at the store cannot tell which known files are there.
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
"""A header that asks for more than a gigabyte to derive a key is not ours."""
PURPOSE = b"windlass-backup-1 "


@dataclass(frozen=True)
class BackupKeys:
    """What seals a backup. It is never printed."""

    names: bytes
    data: bytes

    def __repr__(self) -> str:
        return "Keys(...)"


class Codec:
    """Packs what goes to the store and opens what comes back."""

    def __init__(self, keys: BackupKeys | None = None) -> None:
        self._keys = keys

    def digest(self, data: bytes) -> str:
        """Name a content: its SHA-256, keyed in a sealed backup."""
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
        """Return what was packed; raise Damaged if that is not what is there."""
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
    """Make a backup's own key; return the header that keeps it for whoever has the secret, and the keys."""
    salt, key = os.urandom(16), os.urandom(32)
    closed = _seal(_derived(secret, salt, SCRYPT), key, PURPOSE + b"key")
    header = {"kdf": "scrypt", **SCRYPT, "salt": _text(salt), "key": _text(closed)}
    return header, _keys(key)


def unlock(header: dict[str, Any], secret: bytes, where: str) -> BackupKeys:
    """Return the keys of a backup; raise BadInput if the secret is not that of this backup."""
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
            f"{where}: the key that was given does not open this backup",
            hint="it is the content of the key file, or the passphrase, with which the backup was begun",
        )
    return _keys(key)


def _keys(key: bytes) -> BackupKeys:
    return BackupKeys(_part(key, b"names"), _part(key, b"data"))


def _part(key: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose: HKDF's expansion (RFC 5869) of a key that is random already."""
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
    except (InvalidTag, ValueError):  # a nonce cut short is a value that cannot be
        return None


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise BadInput(
            "an encrypted backup needs cryptography, which is not here",
            hint="pip install 'windlass[backup]'",
        ) from None
    return AESGCM(key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
