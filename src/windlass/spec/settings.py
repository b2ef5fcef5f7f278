"""Settings that may be changed while a run trains. The file is docs/formats/settings.md.

A request holds the whole desired state, so the newest one alone decides, whichever earlier requests were
applied. None means "as planned": the planner's choice stays free to follow the layout and the time budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field

from windlass.spec.config_model import ConfigModel
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.spec.shape import HmmShape, NgramShape
from windlass.spec.sync import Sync

SETTINGS = "settings.json"

TRAIN_KEYS = (
    "learning_rate",
    "micro_batch_sequences",
    "steps",
    "checkpoint_every",
    "evaluate_every",
    "log_every",
)
"""Keys of [train] that a run may change; each is also a key of the file."""
GRADIENT_KEYS = ("sync", "learning_rate", "micro_batch_sequences")
"""Keys that have a meaning only in training by gradients."""

Steps = Annotated[int, Field(ge=1)]


class Settings(ConfigModel):
    """A request to a run: from the next step boundary on, train with these settings."""

    id: Annotated[int, Field(ge=1)]
    """Number of the request, from 1; a trainer applies each once."""
    by: str
    """Who asks."""
    time: float
    """When it was made, in seconds since 1970."""
    undoes: int | None = None
    """The request that this one undoes."""
    sync: Sync | None = None
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The new peak; the schedule continues with it."""
    micro_batch_sequences: Steps | None = None
    steps: Steps | None = None
    checkpoint_every: Steps | None = None
    evaluate_every: Steps | None = None
    log_every: Steps | None = None
    paused: bool = False
    stop: bool = False
    """Save a checkpoint and end; a command that starts the run again first writes a request with False."""

    @property
    def values(self) -> dict[str, Any]:
        """The requested values as JSON, without author and time."""
        return self.model_dump(mode="json", exclude={"id", "by", "time", "undoes"})


AS_PLANNED = Settings(id=1, by="", time=0.0).values
"""The values of a run without any request."""


def applied(run: Run, settings: Settings | None) -> Run:
    """Return a planned run with these settings in force."""
    if settings is None:
        return run
    changes = {key: getattr(settings, key) for key in TRAIN_KEYS if getattr(settings, key) is not None}
    train = run.job.train.model_copy(update={"log_every": changes.pop("log_every", run.job.train.log_every)})
    job = run.job.model_copy(update={"train": train, "sync": settings.sync or run.job.sync})
    if "micro_batch_sequences" in changes:
        changes["micro_batch_sequences"] = _fitting(run, changes["micro_batch_sequences"])
    return run.model_copy(update={**changes, "job": job})


def misfits(run: Run, settings: Settings, step: int) -> Iterator[str]:
    """Yield why a run that has reached `step` cannot use these settings."""
    counts = isinstance(run.shape, NgramShape | HmmShape)
    if counts and settings.values != AS_PLANNED | {"stop": settings.stop}:
        yield f"a run of family '{run.shape.family}' can be stopped and started again, not changed or paused"
    if settings.steps is not None and settings.steps <= step:
        yield f"[train] steps: {settings.steps} is over; the run has done {step}, so at least {step + 1}"
    if settings.steps is not None and settings.steps <= run.warmup_steps:
        yield f"[train] steps: {settings.steps} must be more than the {run.warmup_steps} steps of warm-up"
    yield from _micro_misfits(run, settings.micro_batch_sequences)
    yield from _sync_misfits(run, settings.sync)


def _sync_misfits(run: Run, sync: Sync | None) -> Iterator[str]:
    if sync is None or sync == run.job.sync:
        return
    refused = server_refusal(run, sync)
    if refused is not None:
        yield refused
    if sync.local and run.layout.shares is not None:
        yield "[layout] shares go with [sync] policy = 'every-step' only"
    if run.job.elastic.deterministic and (sync.local or sync.compress != "none"):
        yield "[elastic] deterministic goes with whole gradients at every step ([sync] policy, compress) only"


def refusal(run: Run, settings: Settings) -> str | None:
    """Return why a run in progress cannot apply these settings; None if it can."""
    if isinstance(run.shape, HmmShape):
        foreign = next((key for key in GRADIENT_KEYS if getattr(settings, key) is not None), None)
        return None if foreign is None else f"a hidden Markov run has no {foreign}"
    if settings.sync is None:
        return None
    return server_refusal(run, settings.sync) or pipeline_refusal(run, settings.sync)


def server_refusal(run: Run, sync: Sync) -> str | None:
    """Return why a run in progress cannot switch to or from parameter servers, or change their number."""
    before = run.job.sync
    if "server" not in (sync.policy, before.policy):
        return None
    if (sync.policy, sync.servers, sync.log) != (before.policy, before.servers, before.log):
        return (
            "[sync] policy = 'server', servers and log are fixed when a run starts: stop it, and continue"
            " with windlass train JOB --resume"
        )
    return None


def pipeline_refusal(run: Run, sync: Sync) -> str | None:
    """Return why the replicas of an asynchronous pipeline cannot use this sync policy.

    Replicas sum their gradients of the tied matrix at each end separately, before the ends add up theirs. The
    residual of compression would then differ between the ends, but a checkpoint has one place for it.
    """
    kept = sync.compress in ("top-k", "powersgd") and not sync.local
    if not (kept and run.layout.asynchronous and run.layout.dp > 1 and getattr(run.network, "tied", True)):
        return None
    return f"compress = '{sync.compress}' cannot be used with an asynchronous pipeline and tied embeddings"


def _micro_misfits(run: Run, micro: int | None) -> Iterator[str]:
    if micro is None:
        return
    share = _share(run.layout, run.batch_sequences)
    if run.layout.pp > 1 and micro != run.micro_batch_sequences:
        yield "[train] micro_batch_sequences: a pipeline keeps those that its schedule was made for"
    if share % micro:
        sizes = ", ".join(str(size) for size in range(1, share + 1) if share % size == 0)
        yield (
            f"[train] micro_batch_sequences: {micro} does not divide the {share} sequences of a replica;"
            f" possible: {sizes}"
        )


def folded(records: Iterable[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return the newest request that the journal records as applied, and the values in force since.

    A restarted trainer may journal a request that an earlier one has journalled before; each counts once.
    """
    newest, values = 0, dict(AS_PLANNED)
    for record in records:
        if record.get("event") == "settings" and int(record["id"]) > newest:
            newest = int(record["id"])
            values |= record.get("changed", {})
    return newest, values


def difference(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that differ: the new ones, and the old ones."""
    keys = [key for key in after if after[key] != before[key]]
    return {key: after[key] for key in keys}, {key: before[key] for key in keys}


def _fitting(run: Run, wanted: int) -> int:
    """Return the largest micro-batch size up to `wanted` that divides a replica's share of the batch.

    A pipeline keeps the size that it was planned with.
    """
    share = _share(run.layout, run.batch_sequences)
    if run.layout.pp > 1:
        return run.micro_batch_sequences
    return max(size for size in range(1, min(wanted, share) + 1) if share % size == 0)


def _share(layout: Layout, batch_sequences: int) -> int:
    """Return the sequences of the smallest equal part that replicas get of a batch."""
    return max(1, batch_sequences // (sum(layout.shares) if layout.shares else layout.replicas))
