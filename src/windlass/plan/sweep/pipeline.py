"""The planning pipeline, on Apache Beam: any of its runners runs the same stages.

    files -> read -> tokens of each document -> count by bucket -> x options -> plan -> result | no_solution

This is the only module of the package that imports Beam; the stages are pure functions (`stages`), and the
caller passes the functions that read, count tokens and write, as plain objects that can be sent to a worker.
A file that cannot be read goes to an output of its own, so that the reason survives on any runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput

from windlass.plan.sweep.stages import Bucket, Counted, SweepOption, added, keyed, plan_bucket
from windlass.spec.errors import WindlassError
from windlass.spec.job import Job
from windlass.store.beam import BeamRunner, running

OUTPUTS = ("result", "no_solution", "buckets", "unreadable")


@dataclass(frozen=True)
class Sweep:
    """What a sweep needs from outside; everything in it must survive being pickled."""

    read: Callable[[Any], Iterable[list[str]]]
    """A source -> its documents, in blocks."""
    count: Callable[[list[str]], list[int]]
    """A block -> tokens of each document."""
    write: Callable[[str, list[dict[str, Any]]], None]
    """An output's name and all its rows -> a file."""
    beat: Callable[[str, int], None]
    """Called by workers with their progress: "read" and kilobytes of text, "plan" and plans."""
    job: Job
    options: tuple[SweepOption, ...]


def run_sweep(sweep: Sweep, sources: Sequence[Any], runner: BeamRunner) -> None:
    """Run the pipeline to its end; every output is written, an empty one without rows."""
    with running(runner) as pipeline:
        outputs = _outputs(pipeline, sweep, sources)
        for name in OUTPUTS:
            rows = outputs[name] | f"gather {name}" >> beam.combiners.ToList()
            rows | f"write {name}" >> beam.Map(_written, name, sweep.write)


def _outputs(pipeline: Any, sweep: Sweep, sources: Sequence[Any]) -> dict[str, Any]:
    read = (
        pipeline
        | "sources" >> beam.Create(list(sources))
        | "spread" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(_read, sweep.read).with_outputs("unreadable", main="blocks")
    )
    buckets = (
        read.blocks
        | "count" >> beam.FlatMap(_counted, sweep.count, sweep.beat)
        | "by bucket" >> beam.CombinePerKey(_sum)
        | "bucket" >> beam.MapTuple(_bucket)
    )
    total = buckets | "tokens" >> beam.Map(_tokens) | "all tokens" >> beam.CombineGlobally(sum)
    planned = (
        buckets
        | "options" >> beam.FlatMap(_paired, sweep.options)
        | "spread plans" >> beam.Reshuffle()
        | "plan"
        >> beam.FlatMap(_plan, sweep.job, sweep.beat, AsSingleton(total)).with_outputs(
            "no_solution", main="result"
        )
    )
    rows = buckets | "rows of buckets" >> beam.Map(_bucket_row)
    return {
        "result": planned.result,
        "no_solution": planned.no_solution,
        "buckets": rows,
        "unreadable": read.unreadable,
    }


def _read(source: Any, read: Callable[[Any], Iterable[list[str]]]) -> Iterator[Any]:
    try:
        yield from read(source)
    except WindlassError as error:
        yield TaggedOutput("unreadable", {"message": error.message, "hint": error.hint})


def _counted(
    block: list[str], count: Callable[[list[str]], list[int]], beat: Callable[[str, int], None]
) -> Iterator[tuple[int, Counted]]:
    lengths = count(block)
    beat("read", sum(map(len, block)) >> 10)
    return keyed(lengths)


def _sum(counts: Iterable[Counted]) -> Counted:
    return added(counts)


def _bucket(length: int, counts: Counted) -> Bucket:
    return Bucket(length, *counts)


def _tokens(bucket: Bucket) -> int:
    return bucket.tokens


def _bucket_row(bucket: Bucket) -> dict[str, Any]:
    return {"bucket": bucket.length, "documents": bucket.documents, "tokens": bucket.tokens}


def _paired(bucket: Bucket, options: Sequence[SweepOption]) -> Iterator[tuple[Bucket, SweepOption]]:
    return ((bucket, option) for option in options)


def _plan(
    pair: tuple[Bucket, SweepOption], job: Job, beat: Callable[[str, int], None], whole_tokens: int
) -> Iterator[Any]:
    tag, row = plan_bucket(*pair, job, whole_tokens)
    beat("plan", 1)
    yield row if tag == "result" else TaggedOutput(tag, row)


def _written(
    rows: list[dict[str, Any]], name: str, write: Callable[[str, list[dict[str, Any]]], None]
) -> None:
    """Sort, because workers finish in any order and the same sweep must give the same bytes."""
    write(name, sorted(rows, key=lambda row: [(v is None, v or 0) for v in row.values()]))
