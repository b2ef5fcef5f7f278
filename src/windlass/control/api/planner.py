"""A process that plans: one line of JSON in, a question (spec.protocol.control.PlanBody); one line out, its answer.

    {"plan": {...}}                               docs/formats/plan.md
    {"refused": {"kind", "message", "hint"}}      what cannot be planned, and why

It ends when its input does. It is a process of its own so that whoever waits for a plan can end it, and it
is nice to its neighbours, which may be answering somebody.
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
"""Of a job that has none."""
_OPTION = re.compile(r"(?<![\w-])--(?=[a-z])")


def main(_argv: list[str]) -> int:
    """Answer until nobody asks any more."""
    os.nice(NICE)
    end_after_parent(0)
    for line in sys.stdin.buffer:
        emit(answer_to(PlanBody.model_validate_json(line), datetime.now(UTC)))
    return 0


def answer_to(asked: PlanBody, now: datetime) -> dict[str, Any]:
    """Return the plan, or what is wrong with what was asked for."""
    try:
        return {"plan": planned(plan_request_of(asked), now)}
    except AskedWrongly as error:
        told = error_event(error)
        return {"refused": {key: _in_fields(text) for key, text in told.items()}}


def plan_request_of(asked: PlanBody) -> PlanRequest:
    """Read a question; names are looked up in tables, and never on this machine's disk."""
    if asked.fleet is None:
        raise BadInput("fleet: say for which machines", hint='for example "fleet": "64xH100-SXM5"')
    return PlanRequest(
        job=job_from({"name": NAME, **asked.job}, (), "job", Path("/")),
        fleet=fleet_of(asked.fleet),
        sizes=model_named(asked.sizes).sizes if asked.sizes is not None else None,
        deadline=_text(asked.deadline, "s"),
        budget=_text(asked.budget),
        objective=asked.objective,
        precision=asked.precision,
        search=asked.search,
        more=asked.more,
    )


def fleet_of(given: str | dict[str, Any]) -> Fleet:
    return fleet_in_words(given) if isinstance(given, str) else parse(Fleet, given, "fleet")


def _text(given: str | float | None, unit: str = "") -> str | None:
    """Write a number as people do; one without a unit could be read as a date."""
    return given if given is None or isinstance(given, str) else f"{given!r}{unit}"


def _in_fields(text: str | None) -> str | None:
    """Call fields what they are called here: options have dashes on the command line only."""
    return None if text is None else _OPTION.sub("", text)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
