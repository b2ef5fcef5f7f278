"""GET /admin/audit and /admin/audit/verify: the audit log, and whether it is intact."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.openapi import QUERIES, gives, takes
from windlass.serve.gateway.admin.replies import AuditList, AuditVerdictReply, RecordReply
from windlass.serve.gateway.admin.shared import act, check_query, json_reply, number_of, state_of
from windlass.serve.records.audit_log import read_records
from windlass.serve.records.audit_verify import verify

MAX_RECORDS = 1000
LAST_NUMBER = 10**15
PAGE = (
    {
        "name": "after",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 0, "maximum": LAST_NUMBER, "default": 0},
        "description": "Return records after this number.",
    },
    {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS, "default": 100},
        "description": "Maximum number of records.",
    },
)

router = APIRouter()


@router.get("/admin/audit", openapi_extra=takes(None, PAGE), responses=gives(AuditList, *QUERIES))
async def show_audit(request: Request) -> Response:
    """Return records of the audit log, oldest first."""
    check_query(request, ["after", "limit"])
    after = number_of(request, "after", 0, 0, LAST_NUMBER)
    limit = number_of(request, "limit", 100, 1, MAX_RECORDS)
    records = await act(lambda: read_records(state_of(request), after=after, limit=limit))
    data = [RecordReply.model_validate(asdict(record)) for record in records]
    return json_reply(AuditList(object="list", data=data))


@router.get("/admin/audit/verify", responses=gives(AuditVerdictReply))
async def verify_audit(request: Request) -> Response:
    """Check the hash of every record against the record before it."""
    verdict = await act(lambda: verify(state_of(request)))
    return json_reply(
        AuditVerdictReply(
            object="verdict",
            ok=verdict.ok,
            records=verdict.records,
            first=verdict.first,
            last=verdict.last,
            hash=verdict.hash,
            reasons=verdict.reasons,
        )
    )
