"""The Python client of Windlass: inference, runs, plans and the job queue.

    with Client("http://127.0.0.1:8000", key="wlk_...") as client:    # or $WINDLASS_KEY
        print(client.complete("Once upon a time", max_tokens=50).text)
        for piece in client.stream("Once upon a time", deadline=30):
            ...

    with Jobs("http://127.0.0.1:8100", key) as jobs:
        jobs.set("poems", {"train.learning_rate": 1e-4})
        jobs.follow("poems")

    with Queue("http://127.0.0.1:8100", key) as queue:                # a cluster's
        queue.submit(Path("poems.toml").read_text(), priority=5)

Every client exists twice, synchronous (Client, Jobs, Plans, Queue) and asynchronous (AsyncClient, AsyncJobs,
AsyncPlans, AsyncQueue), over one pure core: a call is a generator that yields effects, and a driver performs
them.

    Client (`client`) -> call (`answers`) -> `exchange` -> effect (`effects`) -> driver (`blocking`,
    `awaiting`) -> httpx

`client` and `jobs` have the clients; the calls are in `answers` (inference), `control` (runs and plans) and
`queue`. `exchange` sends a request to one of the sites within its deadline: `retries` and `sites`
decide whether, when and where to retry, `delivery` resumes a broken stream without lost or repeated text.
`messages` builds requests, `events` parses server-sent events; `replies`, `runs` and `plans` are the typed
results, `failures` the errors. `effects` are the boundary between calls and the drivers `blocking` and
`awaiting`, which share `faces`. `submit` starts training on this machine; `tables` and `progress` draw in
notebooks and terminals.

docs/sdk-python.md has examples that a test runs. Start at `client`.
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
