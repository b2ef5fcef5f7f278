"""The OpenAPI document is complete: every route, status, code, header and scope."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

import windlass
from windlass.http.errors import CODES
from windlass.serve.gateway.app import ADMIN, router
from windlass.serve.gateway.edge.access import PATH_SCOPES

GATEWAY = Path(windlass.__file__).parent / "serve" / "gateway"


@pytest.fixture
def document(http: httpx.Client) -> dict[str, Any]:
    told: dict[str, Any] = http.get("/openapi.json").json()
    return told


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    routes = [route for each in (router, *ADMIN) for route in each.routes if isinstance(route, APIRoute)]
    there = {(method, re.sub(":path", "", route.path)) for route in routes for method in route.methods or ()}
    told = {(method, path) for method, path, _ in operations(document)}
    assert {entry for entry in there if entry[0] != "HEAD"} == told


def test_every_operation_says_what_it_is_for_and_who_may(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        assert operation["description"], (method, path)
        assert bool(operation["security"]) == bool(operation["x-scope"])
        assert operation["x-scope"] in {scope or None for scope in PATH_SCOPES.values()}
    assert len({operation["operationId"] for *_, operation in operations(document)}) == len(
        operations(document)
    )


def test_every_code_is_reported_where_it_can_happen(document: dict[str, Any]) -> None:
    told = {
        code
        for *_, operation in operations(document)
        for status, response in operation["responses"].items()
        for code in re.findall(r"`(\w+)`: ", response.get("description", ""))
        if CODES[code].status == int(status)
    }
    assert set(CODES) - told == {"method_not_allowed"}  # no operation of the document has it
    assert document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] == list(CODES)


def test_every_code_that_is_raised_is_in_the_table() -> None:
    raised = {
        code
        for file in GATEWAY.rglob("*.py")
        for code in re.findall(r'(?:ApiError|fail_all)\(\s*"(\w+)"', file.read_text("utf-8"))
    }
    assert len(raised) > 20
    assert raised <= set(CODES)


def test_every_body_is_closed_and_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for *_, operation in operations(document):
        body = operation.get("requestBody")
        if body is not None:
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert schemas[name]["additionalProperties"] is False
    for name in re.findall(r"#/components/schemas/(\w+)", str(document)):
        assert name in schemas


def test_headers_that_set_terms_are_reported(document: dict[str, Any]) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
        names = {parameter["name"] for parameter in document["paths"][path]["post"]["parameters"]}
        assert names == {"Idempotency-Key", "X-Deadline-Ms"}
    refused = document["paths"]["/v1/completions"]["post"]["responses"]["429"]
    assert set(refused["headers"]) == {"X-Request-Id", "Retry-After"}
