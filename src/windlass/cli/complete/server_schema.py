"""The server's OpenAPI document and model names, from the server or else from this installation."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from windlass.cli.complete.names import home_for, model_names
from windlass.cli.verb_cache import remembered
from windlass.completion.complete import names_of
from windlass.spec.errors import BadInput

WAIT_S = 0.5
"""A server that takes longer is ignored: a person waits for the completion."""
MAX_BYTES = 8 << 20


def known(server: str, key: str, home: str | None) -> tuple[dict[str, Any], list[str], str]:
    """Return the document, the names of models, and the source of both."""
    answer = ask_server(server, key)
    if answer is not None:
        return (*answer, server)
    names = model_names(Path(home) if home is not None else home_for([]))
    return remembered("document", own_document), names, f"this installation; {server} does not answer"


def ask_server(server: str, key: str) -> tuple[dict[str, Any], list[str]] | None:
    """Fetch the document and the models of a server; None if it does not answer."""
    try:
        document = _get(server, "/openapi.json", key)
        listed = _get(server, "/v1/models", key)
        return document, names_of([str(each["id"]) for each in listed["data"]])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None


def own_document() -> dict[str, Any]:
    """Build the OpenAPI document that a gateway of this version serves."""
    from windlass.serve.gateway.app import ADMIN, Gateway, router

    app = Gateway(title="Windlass", docs_url=None, redoc_url=None)
    for each in (router, *ADMIN):
        app.include_router(each)
    return app.openapi()


def _get(server: str, path: str, key: str) -> Any:
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise BadInput(f"--server {server}: is not a URL", hint="e.g. --server http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname, address.port, timeout=WAIT_S)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
        reply = connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"{path}: {reply.status}")
        return json.loads(reply.read(MAX_BYTES))
    finally:
        connection.close()
