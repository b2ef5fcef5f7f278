"""Windlass from someone else's program.

    with Client("http://127.0.0.1:8000", key="wlk_...") as client:    # or $WINDLASS_KEY
        print(client.complete("Once upon a time", max_tokens=50).text)
        for piece in client.stream("Once upon a time", deadline=30):
            ...

    with Jobs("http://127.0.0.1:8100", key) as jobs:
        jobs.set("poems", {"train.learning_rate": 1e-4})
        jobs.follow("poems")

    with Queue("http://127.0.0.1:8100", key) as queue:                # a cluster's
        queue.submit(Path("poems.toml").read_text(), priority=5)

Every client exists twice, to wait (Client, Jobs, Plans, Queue) and to be awaited (AsyncClient, AsyncJobs,
AsyncPlans, AsyncQueue), over one pure core: a call yields what is to be done, a driver does it.

    answers.py, control.py, queue.py     the calls: what can be asked, in which order things happen
      exchange.py              one request, several sites, one deadline
        retries.py sites.py    decide: whether, when and where to try again
        delivery.py            what is new in an answer that was asked for again
        events.py messages.py replies.py runs.py plans.py failures.py    bytes and records
    effects.py                 the border
    blocking.py, awaiting.py   the drivers, over httpx; faces.py is what they share
    client.py, jobs.py         the clients; submit.py starts training here
    tables.py, progress.py     what notebooks and terminals show

docs/sdk-python.md has examples that are run by a test. Start at client.py.
"""

from windlass.sdk.awaiting import AsyncStream, Awaiting
from windlass.sdk.blocking import Blocking, Stream
from windlass.sdk.client import AsyncClient, Client
from windlass.sdk.failures import (
    AnswerDiffers,
    ApiFailure,
    ConflictingChange,
    DeadlinePassed,
    ErrorDetails,
    NotAllowed,
    NotThere,
    RequestRefused,
    ServiceFailed,
    Unreachable,
)
from windlass.sdk.jobs import AsyncJobs, AsyncPlans, Jobs, Plans
from windlass.sdk.messages import SamplingSettings
from windlass.sdk.plans import NoSolution, Plan, PlanChoices, PlanLayout, PlanPoint, PlanWay
from windlass.sdk.progress import RunProgress, Show
from windlass.sdk.queue import AsyncQueue, Queue
from windlass.sdk.replies import Choice, Completion, DryRun, LimitLeft, ModelEntry, Score, TokenisedText
from windlass.sdk.retries import Retries
from windlass.sdk.runs import AuditReport, GoodputReport, IncidentReport, MetricCurve, Runs, RunStatus
from windlass.sdk.sites import Circuit, ServerSite
from windlass.sdk.submit import Submitted, submit, submit_async

__all__ = [
    "AnswerDiffers",
    "ApiFailure",
    "AsyncClient",
    "AsyncJobs",
    "AsyncPlans",
    "AsyncQueue",
    "AsyncStream",
    "AuditReport",
    "Awaiting",
    "Blocking",
    "Choice",
    "Circuit",
    "Client",
    "Completion",
    "ConflictingChange",
    "DeadlinePassed",
    "DryRun",
    "ErrorDetails",
    "GoodputReport",
    "IncidentReport",
    "Jobs",
    "LimitLeft",
    "MetricCurve",
    "ModelEntry",
    "NoSolution",
    "NotAllowed",
    "NotThere",
    "Plan",
    "PlanChoices",
    "PlanLayout",
    "PlanPoint",
    "PlanWay",
    "Plans",
    "Queue",
    "RequestRefused",
    "Retries",
    "RunProgress",
    "RunStatus",
    "Runs",
    "SamplingSettings",
    "Score",
    "ServerSite",
    "ServiceFailed",
    "Show",
    "Stream",
    "Submitted",
    "TokenisedText",
    "Unreachable",
    "submit",
    "submit_async",
]
