"""The calls of the control API, as pure generators: follow and change runs, and make plans.

A run is named NAME/NUMBER, or NAME for the newest one. A request that changes something is retried only if it
certainly did not arrive; every other request is retried like those of `answers`. A watcher that loses its
connection resumes behind the last record that it has seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from windlass.sdk.effects import Call, Flow, Request, close, give, look, wait
from windlass.sdk.events import EventReader
from windlass.sdk.exchange import Attempt, RequestRunner
from windlass.sdk.failures import ApiFailure, NotThere, Unreachable
from windlass.sdk.messages import filled
from windlass.sdk.plans import JobTables, Plan, PlanChoices, tables_of
from windlass.sdk.progress import Screen, Show
from windlass.sdk.runs import (
    AuditReport,
    GoodputReport,
    IncidentReport,
    MetricCurve,
    Runs,
    RunStatus,
    curve_of,
)

Json = dict[str, Any]
Records = list[Json]
Incidents = list[IncidentReport]
Value = bool | int | float | str
Take = Callable[[Json], Call[None]]

NONE_OF_THEM = 10**12
"""A position beyond the end of any journal: a watcher behind it receives only the end of the run."""
BEGIN_S = 60.0
"""How long a run may take to begin; after that, no process works on it."""
LOOK_EVERY_S = 0.5


class ControlCalls:
    """The calls about runs."""

    def __init__(self, exchange: RequestRunner, *, deadline: float | None) -> None:
        self.exchange = exchange
        self._deadline = deadline

    def list(self) -> Call[Runs]:
        """Return the state of every run.

        [run.name for run in jobs.list() if not run.is_over]
        """
        reply = yield from self._ask("GET", "/v1/jobs")
        return Runs(RunStatus(job) for job in reply["jobs"])

    def show(self, run: str) -> Call[RunStatus]:
        """Return the state of a run: step, loss, settings in force, changes and who made them.

        jobs.show("poems").loss
        """
        path = yield from self._path(run)
        reply = yield from self._ask("GET", path)
        return RunStatus(reply)

    def journal(self, run: str, *, after: int = 0) -> Call[Records]:
        """Return the records of a run's journal, without the first `after`."""
        path = yield from self._path(run)
        records: Records = []
        while True:
            reply = yield from self._ask("GET", f"{path}/journal?after={after + len(records)}")
            if not reply["records"]:
                return records
            records += reply["records"]

    def curve(self, run: str, name: str = "loss", *, event: str = "step") -> Call[MetricCurve]:
        """Return a figure over the steps of a run; a notebook draws it.

        jobs.curve("poems")                                  # the loss of training
        jobs.curve("poems", "perplexity", event="evaluation")
        """
        records = yield from self.journal(run)
        return curve_of(records, name, event)

    def audit(self, run: str) -> Call[AuditReport]:
        """Return whether every sample was used exactly once.

        jobs.audit("poems").ok
        """
        path = yield from self._path(run)
        reply = yield from self._ask("GET", f"{path}/audit")
        return AuditReport(reply["facts"])

    def goodput(self, run: str) -> Call[GoodputReport]:
        """Return how the run spent its time."""
        path = yield from self._path(run)
        reply = yield from self._ask("GET", f"{path}/goodput")
        return GoodputReport(reply)

    def incidents(self, run: str) -> Call[Incidents]:
        """Return the incidents of a run, and how each was resolved."""
        path = yield from self._path(run)
        reply = yield from self._ask("GET", f"{path}/incidents")
        return [IncidentReport(incident) for incident in reply["incidents"]]

    def set(self, run: str, changes: Mapping[str, Value]) -> Call[Json]:
        """Request other settings; return the request as recorded.

        jobs.set("poems", {"train.learning_rate": 1e-4})
        """
        return (yield from self._change(run, "set", {"changes": dict(changes)}))

    def scale(self, run: str, workers: int) -> Call[Json]:
        """Ask an elastic run to continue with another number of workers."""
        path = yield from self._path(run)
        return (yield from self._ask("POST", f"{path}/scale", {"workers": workers}))

    def pause(self, run: str) -> Call[Json]:
        """Ask a run to pause at its next step boundary."""
        return (yield from self._change(run, "pause"))

    def resume(self, run: str) -> Call[Json]:
        """Ask a paused run to continue."""
        return (yield from self._change(run, "resume"))

    def stop(self, run: str) -> Call[Json]:
        """Ask a run to save a checkpoint and end."""
        return (yield from self._change(run, "stop"))

    def undo(self, run: str) -> Call[Json]:
        """Ask a run to go back to the settings before its last change."""
        return (yield from self._change(run, "undo"))

    def watch(self, run: str, *, after: int = 0, deadline: float | None = None) -> Flow[Json, RunStatus]:
        """Yield the records of a run's journal as they arrive, until it ends; the result is its final state.

        for record in jobs.watch("poems"):
            print(record["event"])
        """
        return Flow(self._to_its_end(run, after, deadline, give))

    def wait(self, run: str, *, deadline: float | None = None) -> Call[RunStatus]:
        """Wait until a run ends; return its final state.

        jobs.wait("poems", deadline=3600).state
        """
        return (yield from self._to_its_end(run, NONE_OF_THEM, deadline, _nothing))

    def follow(
        self, run: str, *, screen: Screen | None = None, deadline: float | None = None
    ) -> Call[RunStatus]:
        """Show the progress of a run, in a notebook or a terminal, until it ends; return its final state.

        jobs.follow("poems")
        """
        show = Show(run, screen)

        def draw(record: Json) -> Call[None]:
            show.push(record)
            yield from ()

        try:
            return (yield from self._to_its_end(run, 0, deadline, draw))
        finally:
            show.close()

    def _to_its_end(self, run: str, after: int, deadline: float | None, take: Take) -> Call[RunStatus]:
        """Watch a run until it is over; one that was just submitted may take a while to begin."""
        attempt = yield from self.exchange.begin(deadline)
        started = yield from look()
        while True:
            after = yield from self._watch(run, after, attempt, take)
            standing = yield from self.show(run)
            now = yield from look()
            if standing.state != "new" or now - started >= BEGIN_S:
                return standing
            yield from wait(LOOK_EVERY_S)

    def _watch(self, run: str, after: int, attempt: Attempt, take: Take) -> Call[int]:
        """Read events; when the connection breaks, resume behind the last one received."""
        path = yield from self._path(run)
        seen = after
        while True:
            headers = {"accept": "text/event-stream", "last-event-id": str(seen)}
            request = Request("GET", f"{path}/journal?after={seen}", headers=headers, streams=True)
            answer = yield from self.exchange.ask(request, attempt)
            seen, failure = yield from self._read(answer.site.url, seen, attempt, take)
            yield from close()
            if failure is None:
                return seen
            yield from self.exchange.failed(request, attempt, failure)

    def _read(self, url: str, seen: int, attempt: Attempt, take: Take) -> Call[tuple[int, ApiFailure | None]]:
        reader = EventReader()
        while True:
            received = yield from self.exchange.more(attempt)
            if isinstance(received, ApiFailure):
                return seen, received
            if not received:
                return seen, Unreachable(f"{url}: the connection broke before the run ended", sent=True)
            for event in reader.push(received):
                if event.name == "end":
                    return seen, None
                place = int(event.id) if event.id.isascii() and event.id.isdigit() else seen + 1
                if place > seen:
                    seen = place
                    attempt.progressed()
                    yield from take(json.loads(event.data))

    def _change(self, run: str, verb: str, body: Json | None = None) -> Call[Json]:
        path = yield from self._path(run)
        reply = yield from self._ask("POST", f"{path}/{verb}", body or {})
        request: Json = reply["request"]
        return request

    def _path(self, run: str) -> Call[str]:
        name, _, number = run.partition("/")
        if not number:
            number = yield from self._newest(name)
        return f"/v1/jobs/{name}/{number}"

    def _newest(self, name: str) -> Call[str]:
        runs = yield from self.list()
        numbers = [int(run.name.rpartition("/")[2]) for run in runs if run.name.startswith(f"{name}/")]
        if not numbers:
            raise NotThere(f"no run of '{name}'")
        return str(max(numbers))

    def _ask(self, method: str, path: str, body: Json | None = None) -> Call[Json]:
        attempt = yield from self.exchange.begin(self._deadline)
        request = Request(method, path, body, repeats=method == "GET")
        answer = yield from self.exchange.ask(request, attempt)
        return answer.read(dict)


class Planning:
    """The calls of the planner."""

    def __init__(self, exchange: RequestRunner, *, deadline: float | None) -> None:
        self.exchange = exchange
        self._deadline = deadline

    def ask(
        self,
        job: JobTables,
        *,
        fleet: str | Mapping[str, Any],
        sizes: str | None = None,
        objective: str | None = None,
        deadline: str | float | None = None,
        budget: str | float | None = None,
        precision: str | None = None,
        more: int | None = None,
        search: str | None = None,
    ) -> Call[Plan]:
        """Plan a job, given by its file or its tables, for a fleet; "no solution" is a result, not an error.

        plans.ask("job.toml", fleet="64xH100-SXM5", deadline="3d").best.dollars
        plans.ask({"train": {"tokens": "300B"}}, fleet="8xA100-SXM4-80GB", sizes="Llama-3.1-8B")
        """
        options = {
            "sizes": sizes,
            "objective": objective,
            "deadline": deadline,
            "budget": budget,
            "precision": precision,
            "more": more,
            "search": search,
        }
        machines = fleet if isinstance(fleet, str) else dict(fleet)
        body = {"job": tables_of(job), "fleet": machines} | filled(options)
        return Plan.read((yield from self._ask(Request("POST", "/v1/plan", body))))

    def choices(self) -> Call[PlanChoices]:
        """Return the names that a plan request can use: devices, published sizes, precisions.

        plans.choices().devices
        """
        return PlanChoices((yield from self._ask(Request("GET", "/v1/plan/choices"))))

    def _ask(self, request: Request) -> Call[Json]:
        attempt = yield from self.exchange.begin(self._deadline)
        answer = yield from self.exchange.ask(request, attempt)
        return answer.read(dict)


def _nothing(record: Json) -> Call[None]:
    yield from ()
