"""The planner process: one line of JSON in (spec.protocol.control.PlanBody), one line of JSON out.

    {"plan": {...}}                               docs/formats/plan.md
    {"refused": {"kind", "message", "hint"}}      why the request is invalid

It ends when its input does. It is a separate process so that the control API can kill it, and it runs at low
priority, because other processes of the machine may be serving requests.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.plan.cost.models import model_named
from windlass.plan.fleet.request import PlanRequest, planned
from windlass.spec.errors import AskedWrongly, BadInput
from windlass.spec.fleet import Fleet, fleet_in_words
from windlass.spec.protocol.control import PlanBody
from windlass.spec.protocol.entrypoint import emit, end_after_parent, error_event, exit_code_of
from windlass.spec.read import job_from, parse

NICE = 5
NAME = "job"
"""The name of a job that has none."""
_OPTION = re.compile(r"(?<![\w-])--(?=[a-z])")


def main(_argv: list[str]) -> int:
    """Reply until the input ends."""
    os.nice(NICE)
    end_after_parent(0)
    for line in sys.stdin.buffer:
        emit(answer_to(PlanBody.model_validate_json(line), datetime.now(UTC)))
    return 0


def answer_to(body: PlanBody, now: datetime) -> dict[str, Any]:
    """Return the plan, or why the request is invalid."""
    try:
        return {"plan": planned(plan_request_of(body), now)}
    except AskedWrongly as error:
        refusal = error_event(error)
        return {"refused": {key: _in_fields(text) for key, text in refusal.items()}}


def plan_request_of(body: PlanBody) -> PlanRequest:
    """Read a request; names are looked up in tables, never on this machine's disk."""
    if body.fleet is None:
        raise BadInput("fleet: is missing; name the machines", hint='for example "fleet": "64xH100-SXM5"')
    return PlanRequest(
        job=job_from({"name": NAME, **body.job}, (), "job", Path("/")),
        fleet=fleet_of(body.fleet),
        sizes=model_named(body.sizes).sizes if body.sizes is not None else None,
        deadline=_text(body.deadline, "s"),
        budget=_text(body.budget),
        objective=body.objective,
        precision=body.precision,
        search=body.search,
        more=body.more,
    )


def fleet_of(given: str | dict[str, Any]) -> Fleet:
    return fleet_in_words(given) if isinstance(given, str) else parse(Fleet, given, "fleet")


def _text(given: str | float | None, unit: str = "") -> str | None:
    """Write a number as text with its unit; without one it could be read as a date."""
    return given if given is None or isinstance(given, str) else f"{given!r}{unit}"


def _in_fields(text: str | None) -> str | None:
    """Remove the dashes of command-line options: here they are fields."""
    return None if text is None else _OPTION.sub("", text)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
