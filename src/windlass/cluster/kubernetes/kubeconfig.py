"""Finds the API server and our credentials.

As kubectl does: $KUBECONFIG (several files, the first with an entry wins), else ~/.kube/config, else the
service account of our pod. Credentials are a certificate, a token, a file with a token that is renewed, or a
program that prints either (client.authentication.k8s.io).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.spec.errors import BadInput

DEFAULT = Path("~/.kube/config")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_S = 60.0
EXEC_INFO = "KUBERNETES_EXEC_INFO"


@dataclass(frozen=True)
class ClusterAccess:
    """One API server and one user of it."""

    server: str
    namespace: str = "default"
    ca_pem: bytes | None = None
    verify: bool = True
    server_name: str | None = None
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Chain and private key in PEM."""
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    command: Mapping[str, Any] | None = field(default=None, repr=False)
    """The exec entry of a user: a program that prints credentials."""

    def bearer(self) -> str | None:
        """Return the token of the next request; a file is read every time, because kubelets renew it."""
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.token


def find_access(context: str | None = None, environment: Mapping[str, str] | None = None) -> ClusterAccess:
    """Return the access of a context: the one named, else the current one, else that of our pod."""
    known = os.environ if environment is None else environment
    paths = [Path(p).expanduser() for p in known.get("KUBECONFIG", str(DEFAULT)).split(os.pathsep) if p]
    found = [(path, _read(path)) for path in paths if path.is_file()]
    if found:
        return prove(_choose(found, context))
    if "KUBERNETES_SERVICE_HOST" in known and (ACCOUNT / "token").is_file() and context is None:
        return in_cluster(known)
    raise BadInput(
        "no Kubernetes cluster is configured: " + ", ".join(str(path) for path in paths) + " does not exist",
        hint="set $KUBECONFIG to the file that your cluster gave you",
    )


def in_cluster(environment: Mapping[str, str], account: Path = ACCOUNT) -> ClusterAccess:
    """Return the access by the service account of a pod."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(account / "namespace").read_text().strip(),
        ca_pem=(account / "ca.crt").read_bytes(),
        token_file=account / "token",
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        config = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: is not a kubeconfig: {error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path}: is not a kubeconfig")
    return config


def _choose(files: list[tuple[Path, dict[str, Any]]], context: str | None) -> ClusterAccess:
    name = context or next(
        (config["current-context"] for _, config in files if config.get("current-context")), None
    )
    known = [entry["name"] for _, config in files for entry in config.get("contexts") or ()]
    if name is None:
        raise BadInput("the kubeconfig has no current context", hint="contexts: " + ", ".join(known))
    if name not in known:
        raise BadInput(f"the kubeconfig has no context '{name}'", hint="contexts: " + ", ".join(known))
    _, chosen = _entry(files, "context", name)
    at, cluster = _entry(files, "cluster", str(chosen.get("cluster")))
    user_at, user = _entry(files, "user", str(chosen["user"])) if chosen.get("user") else (at, {})
    certificate = _bytes(user, "client-certificate", user_at), _bytes(user, "client-key", user_at)
    token_file = user.get("tokenFile")
    return ClusterAccess(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=chosen.get("namespace") or "default",
        ca_pem=_bytes(cluster, "certificate-authority", at),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        certificate=(certificate[0], certificate[1]) if certificate[0] and certificate[1] else None,
        token=user.get("token"),
        token_file=user_at.parent / token_file if token_file else None,
        command=user.get("exec"),
    )


def _entry(files: list[tuple[Path, dict[str, Any]]], kind: str, name: str) -> tuple[Path, dict[str, Any]]:
    for path, config in files:
        for entry in config.get(f"{kind}s") or ():
            if entry.get("name") == name:
                return path, entry.get(kind) or {}
    raise BadInput(f"the kubeconfig has no {kind} '{name}'", hint="; ".join(str(path) for path, _ in files))


def _bytes(table: Mapping[str, Any], key: str, near: Path) -> bytes | None:
    """Read a value from the kubeconfig itself (`KEY-data`) or from the file that it names (`KEY`)."""
    if table.get(f"{key}-data"):
        return base64.b64decode(table[f"{key}-data"])
    if table.get(key):
        path = near.parent / str(table[key])
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}, but the kubeconfig {near} names it") from error
    return None


def prove(access: ClusterAccess) -> ClusterAccess:
    """Return the access with the credentials that its program prints, if it has one."""
    if access.command is None:
        return access
    entry = access.command
    request = {
        "apiVersion": entry.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    added = {each["name"]: each["value"] for each in entry.get("env") or ()}
    try:
        done = subprocess.run(
            [str(entry["command"]), *(entry.get("args") or ())],
            env={**os.environ, EXEC_INFO: json.dumps(request), **added},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=EXEC_S,
            check=True,
        )
        status = json.loads(done.stdout)["status"]
    except FileNotFoundError as error:
        raise BadInput(
            f"the kubeconfig gets credentials from '{entry['command']}', which is not installed",
            hint=entry.get("installHint"),
        ) from error
    except subprocess.SubprocessError as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-500:]
        raise BadInput(f"'{entry['command']}' gave no credentials", hint=output or str(error)) from error
    except (ValueError, KeyError) as error:
        raise BadInput(f"'{entry['command']}' printed no ExecCredential") from error
    pair = status.get("clientCertificateData"), status.get("clientKeyData")
    certificate = (pair[0].encode(), pair[1].encode()) if pair[0] and pair[1] else access.certificate
    return ClusterAccess(**{**vars(access), "token": status.get("token"), "certificate": certificate})


def tls_of(access: ClusterAccess) -> ssl.SSLContext:
    """Return the TLS context with the trusted CA and our certificate."""
    context = ssl.create_default_context(cadata=access.ca_pem.decode() if access.ca_pem else None)
    if not access.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if access.certificate is not None:
        with _file(b"\n".join(access.certificate)) as path:
            context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Write a private temporary file: Python loads certificates from files only."""
    with tempfile.NamedTemporaryFile(prefix="windlass-", suffix=".pem") as file:
        file.write(content)
        file.flush()
        yield file.name
