"""TLS: a wrong certificate is reported before the gateway listens, and a good one works."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.http.tls import check_tls
from windlass.spec.errors import BadInput
from windlass.spec.serve import Serve

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

PATIENCE_S = 60.0
NEW_KEY = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
NAMES = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs, one certificate that has expired, and one key behind a password."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("good", "other"):
        openssl(*NEW_KEY, *NAMES, "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")
    key = f"{folder}/good.key"
    openssl("x509", "-in", f"{folder}/good.pem", "-signkey", key, "-days", "-1", "-out", f"{folder}/old.pem")
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", f"{folder}/locked.key")
    (folder / "text.pem").write_text("not a certificate\n")
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("good.pem", None, "both"),
        (None, "good.key", "both"),
        ("none.pem", "good.key", "none.pem: no such file"),
        ("good.pem", "none.key", "none.key: no such file"),
        ("good.pem", "other.key", "is not the key of"),
        ("old.pem", "good.key", "has expired"),
        ("good.pem", "locked.key", "is encrypted"),
        ("text.pem", "good.key", "no certificate with its key"),
        (".", "good.key", "is a directory"),
    ],
)
def test_a_pair_that_no_client_could_use_is_refused(
    pki: Path, certificate: str | None, key: str | None, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        check_tls(pki / certificate if certificate else None, pki / key if key else None)


def test_a_good_pair_and_none_at_all_are_accepted(pki: Path) -> None:
    check_tls(pki / "good.pem", pki / "good.key")
    check_tls(None, None)


def test_a_gateway_with_a_certificate_speaks_tls_alone(pki: Path, start_gateway: Any) -> None:
    serve = Serve(tls_certificate=pki / "good.pem", tls_key=pki / "good.key")
    gateway = start_gateway(serve=serve)
    gateway.wait_until("/readyz", 200)
    trusted = ssl.create_default_context(cafile=str(pki / "good.pem"))
    with httpx.Client(base_url=gateway.url, verify=trusted, timeout=PATIENCE_S) as client:
        assert gateway.url.startswith("https://")
        assert client.get("/healthz").status_code == 200
        ask = {"model": "tiny", "prompt": "dog", "max_tokens": 3, "stream": True}
        lines = client.post("/v1/completions", json=ask).text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
    with pytest.raises(httpx.TransportError):
        httpx.get(gateway.url.replace("https", "http") + "/healthz", timeout=PATIENCE_S)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{gateway.url}/healthz", timeout=PATIENCE_S)
