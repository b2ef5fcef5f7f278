"""The stages of a sweep, as pure functions; pipeline.py strings them together on Beam.

    text -> its length in tokens -> bucket of lengths -> (bucket x option) -> a plan, or why there is none

A bucket holds the documents of one length within a factor of two. It is planned as a run of its own, because
sequences of 512 tokens and of 32 thousand want other micro-batches and other layouts; documents that are
longer than an option's context are cut into pieces of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from windlass.plan.cost.step_config import Precision, Sizes
from windlass.plan.fleet.explore import SearchFound
from windlass.plan.fleet.greedy import greedy
from windlass.plan.fleet.pools import DevicePool, pools_of
from windlass.plan.fleet.run_estimate import RunEstimate, estimate_run, worth
from windlass.plan.fleet.work import TrainingWork, sized, work_of
from windlass.plan.search import DEFAULT_CONTEXT
from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import BadInput
from windlass.spec.fleet import Fleet, fleet_of
from windlass.spec.job import Job
from windlass.spec.units import format_bytes, parse_count

Count = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
MIN_BUCKET = 16
"""Shorter documents are planned as if they were this long."""


class SweepOptions(ConfigModel):
    """What to plan for, besides what the job says: every combination of these."""

    contexts: tuple[Count, ...] = Field((), description="longest sequences, in tokens")
    models: tuple[Count, ...] = Field((), description="weights of the model, e.g. '7B'")
    precisions: tuple[Precision, ...] = Field((), description="arithmetic, e.g. 'bfloat16'")
    fleets: tuple[str, ...] = Field((), description="fleet files or words like '64xH100-SXM5'")


@dataclass(frozen=True)
class SweepOption:
    """One combination; None means what the job says."""

    context: int | None
    parameters: int | None
    precision: Precision | None
    machines: str
    """The fleet as requested; `fleet` has its content, because a worker may not see its file."""
    fleet: Fleet


@dataclass(frozen=True)
class Bucket:
    """Documents of up to `length` tokens, and more than half of it."""

    length: int
    documents: int
    tokens: int


Counted = tuple[int, int]
"""Documents and tokens."""


def combinations(options: SweepOptions, fleet: str | None) -> tuple[SweepOption, ...]:
    """Return every option, in a fixed order."""
    machines = tuple(dict.fromkeys((*((fleet,) if fleet is not None else ()), *options.fleets)))
    if not machines:
        raise BadInput(
            "plan sweep: no machines given", hint="give --fleet 64xH100-SXM5, or fleets in --options"
        )
    fleets = {name: fleet_of(name) for name in machines}
    combined = itertools.product(
        options.contexts or (None,), options.models or (None,), options.precisions or (None,), machines
    )
    return tuple(SweepOption(*one, fleets[one[-1]]) for one in combined)


def check_options(options: Sequence[SweepOption], job: Job) -> None:
    """Refuse, before any text is read, what no bucket could be planned for."""
    for option in options:
        pools_of(option.fleet)
        _work(Bucket(MIN_BUCKET, 1, MIN_BUCKET), option, job, MIN_BUCKET)


def bucket_of(tokens: int) -> int:
    """Return the smallest power of two that holds so many tokens."""
    return max(MIN_BUCKET, 1 << (tokens - 1).bit_length())


def keyed(lengths: Iterable[int]) -> Iterator[tuple[int, Counted]]:
    """Input: lengths of documents. Output: (bucket, (1 document, its tokens)); empty ones are left out."""
    return ((bucket_of(tokens), (1, tokens)) for tokens in lengths if tokens > 0)


def added(counts: Iterable[Counted]) -> Counted:
    """Add up counts; any grouping gives the same, so a runner may add in parts."""
    documents = tokens = 0
    for more_documents, more_tokens in counts:
        documents, tokens = documents + more_documents, tokens + more_tokens
    return documents, tokens


def plan_bucket(
    bucket: Bucket, option: SweepOption, job: Job, whole_tokens: int
) -> tuple[str, dict[str, Any]]:
    """Input: a bucket and an option. Output: ("result", row) or ("no_solution", row with the reason)."""
    work = _work(bucket, option, job, whole_tokens)
    row: dict[str, Any] = {
        "fleet": option.machines,
        "parameters": work.sizes.parameters,
        "context": option.context or job.model.context or DEFAULT_CONTEXT,
        "precision": _arithmetic(work),
        "bucket": bucket.length,
        "documents": bucket.documents,
        "tokens": bucket.tokens,
        "sequence": work.sequence,
        "batch": work.global_batch,
    }
    tried = [(pool, greedy(work, pool)) for pool in pools_of(option.fleet)]
    plans = [estimate_run(work, pool, found.best) for pool, found in tried if found.best is not None]
    if not plans:
        return "no_solution", row | {"reason": _reason(work, tried)}
    return "result", row | _planned(min(plans, key=lambda plan: worth(plan, "time")))


def _work(bucket: Bucket, option: SweepOption, job: Job, whole_tokens: int) -> TrainingWork:
    """Return the run of one bucket: its share of the tokens, in batches of as many tokens as the job's.

    A job that does not say how much to train sees the corpus once.
    """
    train = job.train
    if train.tokens is None and train.steps is None:
        train = train.model_copy(update={"tokens": whole_tokens, "time": None})
    model = job.model.model_copy(update={"context": option.context} if option.context else {})
    changed = job.model_copy(update={"model": model, "train": train})
    precisions = (option.precision,) if option.precision else ()
    whole = work_of(changed, _sizes(option, job), precisions=precisions)
    sequence = min(bucket.length, whole.sequence)
    batch = max(1, whole.global_batch * whole.sequence // sequence)
    tokens = max(1.0, whole.tokens * bucket.tokens / whole_tokens)
    return replace(whole, sequence=sequence, global_batch=1 << (batch.bit_length() - 1), tokens=tokens)


def _sizes(option: SweepOption, job: Job) -> Sizes | None:
    if option.parameters is None:
        return None
    return sized(option.parameters, job.corpus.tokenizer.vocabulary)


def _planned(plan: RunEstimate) -> dict[str, Any]:
    case = plan.case
    low, high = plan.cost.dollars or (None, None)
    return {
        "precision": case.precision,
        "device": case.device.name,
        "devices": plan.devices,
        "dp": case.dp,
        "tp": case.tp,
        "pp": case.pp,
        "virtual": case.virtual,
        "cp": case.cp,
        "ep": case.ep,
        "sharding": case.sharding,
        "recompute": case.recompute_name,
        "micro_batch": case.micro_batch,
        "steps": plan.steps,
        "step_s": plan.step.seconds,
        "step_low_s": plan.step.low,
        "step_high_s": plan.step.high,
        "memory_bytes": plan.memory_bytes,
        "seconds": plan.seconds,
        "dollars_low": low,
        "dollars_high": high,
    }


def _reason(work: TrainingWork, tried: Sequence[tuple[DevicePool, SearchFound]]) -> str:
    """Name the binding constraint on the pool that comes nearest."""
    unfit = [(pool, found.smallest) for pool, found in tried if found.smallest is not None]
    if not unfit:
        names = ", ".join(f"{pool.devices} x {pool.device.name}" for pool, _ in tried)
        return f"no layout divides a batch of {work.global_batch} in {_arithmetic(work)} among {names}"
    pool, smallest = min(unfit, key=lambda pair: pair[1].memory.bytes - pair[0].device.memory_bytes)
    return (
        f"memory: the smallest layout needs {format_bytes(smallest.memory.high)} on each {pool.device.name},"
        f" which has {format_bytes(pool.device.memory_bytes)}"
    )


def _arithmetic(work: TrainingWork) -> str:
    """Return the requested precisions; open means the 16-bit format of the device."""
    return " or ".join(work.precisions) or "16 bits"
