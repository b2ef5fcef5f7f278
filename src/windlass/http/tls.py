"""A certificate and its key, looked at before anything listens.

OpenSSL itself is asked whether the certificate is in force: it shakes hands with itself in memory, trusting
nothing but this certificate, so dates and signatures are judged as a client would judge them.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from windlass.spec.errors import BadInput

NOT_YET, EXPIRED = 9, 10
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Refuse a pair of files that no client could use; neither of them means plain HTTP."""
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
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == EXPIRED:
            raise BadInput(f"{certificate}: has expired", hint="renew the certificate") from None
        if error.verify_code == NOT_YET:
            raise BadInput(f"{certificate}: is not in force yet", hint="is the clock right?") from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Let the two talk until the client has judged the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
