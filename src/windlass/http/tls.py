"""Checks a certificate and its key before the server listens.

OpenSSL checks whether the certificate is valid now: a handshake in memory, with a client that trusts
nothing but this certificate, so dates and signatures are checked as by a real client.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from windlass.spec.errors import BadInput

NOT_YET, EXPIRED = 9, 10
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise a WindlassError if no client could use this pair; without both, the server speaks plain HTTP."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise BadInput("TLS needs both --tls-certificate and --tls-key", hint="give both, or neither")
    for file in (certificate, key):
        _check_readable(file)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        raise _unusable(certificate, key, error) from None
    _check_dates(server, certificate)


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadInput(f"{file}: {(error.strerror or 'cannot be read').lower()}") from None


def _refuse_password() -> str:
    raise BadInput("the TLS key is encrypted", hint="write it without: openssl pkey -in KEY -out PLAIN")


def _unusable(certificate: Path, key: Path, error: ssl.SSLError) -> BadInput:
    if error.reason == "KEY_VALUES_MISMATCH":
        return BadInput(f"{key}: is not the key of {certificate}", hint="give the pair that belongs together")
    return BadInput(
        f"{certificate} and {key}: no certificate with its key in PEM ({error.reason or 'unreadable'})",
        hint="a PEM file begins with -----BEGIN",
    )


def _check_dates(server: ssl.SSLContext, certificate: Path) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    try:
        _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == EXPIRED:
            raise BadInput(f"{certificate}: has expired", hint="renew the certificate") from None
        if error.verify_code == NOT_YET:
            raise BadInput(f"{certificate}: is not valid yet", hint="is the clock right?") from None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Run a handshake until the client has verified the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
