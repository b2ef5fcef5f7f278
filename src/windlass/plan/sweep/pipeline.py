"""The planning pipeline, on Apache Beam: any of its runners runs the same stages.

    files -> read -> tokens of each document -> count by bucket -> x options -> plan -> result | no_solution

This is the only module of the room that knows Beam; the stages are pure functions (stages.py), and what
reads, counts tokens and writes is given by the caller, as plain objects that can be sent to a worker. A
file that cannot be read goes to an output of its own, so that the reason survives whatever runner met it.
The embedded runner is built here, because Beam's own default starts a downloaded program.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton, TaggedOutput
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from windlass.plan.sweep.stages import Bucket, Counted, Option, added, keyed, plan_bucket
from windlass.spec.errors import WindlassError
from windlass.spec.job import Job

CLUSTERS = {
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}
LOOPBACK = "127.0.0.1"
WORKER = "apache_beam.runners.worker.sdk_worker_main"
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
    """Told by workers how far they are: "read" and kilobytes of text, "plan" and plans."""
    job: Job
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Runner:
    """Who runs the pipeline: the embedded runner in some processes, or a cluster by its Beam flags."""

    kind: str = "direct"
    processes: int = 1
    log: str = os.devnull
    """Where processes of the embedded runner write what they have to say."""
    flags: tuple[str, ...] = ()


def run_sweep(sweep: Sweep, sources: Sequence[Any], runner: Runner) -> None:
    """Run the pipeline to its end; every output is written, an empty one without rows."""
    flags = [f"--direct_num_workers={runner.processes}", *runner.flags]
    options = PipelineOptions(flags if runner.kind == "direct" else list(runner.flags))
    with on_loopback(), beam.Pipeline(runner=_runner(runner), options=options) as pipeline:
        outputs = _outputs(pipeline, sweep, sources)
        for name in OUTPUTS:
            rows = outputs[name] | f"gather {name}" >> beam.combiners.ToList()
            rows | f"write {name}" >> beam.Map(_written, name, sweep.write)


def _runner(runner: Runner) -> Any:
    if runner.kind != "direct":
        return CLUSTERS[runner.kind]
    if runner.processes == 1:
        return FnApiRunner()
    command = f"{shlex.quote(sys.executable)} -m {WORKER} 2>>{shlex.quote(runner.log)}"
    return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(command))


@contextmanager
def on_loopback() -> Iterator[None]:
    """Keep the ports through which the embedded runner talks to its processes on this machine.

    Beam opens them on every interface and lets anybody connect.
    """
    grpc = worker_handlers.grpc
    make = grpc.server

    def server(*args: Any, **kinds: Any) -> Any:
        made = make(*args, **kinds)
        opened = made.add_insecure_port
        made.add_insecure_port = lambda address: opened(address.replace("[::]", LOOPBACK))
        return made

    grpc.server = server
    try:
        yield
    finally:
        grpc.server = make


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


def _paired(bucket: Bucket, options: Sequence[Option]) -> Iterator[tuple[Bucket, Option]]:
    return ((bucket, option) for option in options)


def _plan(
    pair: tuple[Bucket, Option], job: Job, beat: Callable[[str, int], None], whole_tokens: int
) -> Iterator[Any]:
    tag, row = plan_bucket(*pair, job, whole_tokens)
    beat("plan", 1)
    yield row if tag == "result" else TaggedOutput(tag, row)


def _written(
    rows: list[dict[str, Any]], name: str, write: Callable[[str, list[dict[str, Any]]], None]
) -> None:
    """Sort, because workers finish in any order and the same sweep shall give the same bytes."""
    write(name, sorted(rows, key=lambda row: [(v is None, v or 0) for v in row.values()]))
