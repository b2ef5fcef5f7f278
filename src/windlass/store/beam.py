"""Runs a Beam pipeline: by the embedded runner in processes of this machine, or on a cluster.

The pipelines themselves are in the packages whose stages they run. The embedded runner is built here, because
Beam's own default starts a downloaded program; its ports stay on loopback.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from windlass.spec.errors import AskedWrongly

CLUSTERS = {
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}
RUNNERS = ("direct", *CLUSTERS)
LOOPBACK = "127.0.0.1"
WORKER = "apache_beam.runners.worker.sdk_worker_main"


@dataclass(frozen=True)
class BeamRunner:
    """The runner of a pipeline; `flags` configure a cluster."""

    kind: str = "direct"
    processes: int = 1
    """Of the embedded runner."""
    log: str = os.devnull
    """File for the standard error of the embedded runner's processes."""
    flags: tuple[str, ...] = ()


def check_beam(what: str) -> None:
    """Raise AskedWrongly for `what` if the extra with Beam is not installed."""
    try:
        import apache_beam  # noqa: F401
    except ModuleNotFoundError:
        raise AskedWrongly(
            f"{what} needs Apache Beam, which is not installed", hint="pip install 'windlass[beam]'"
        ) from None


def flag_of(text: str) -> str:
    """Turn KEY=VALUE of a command line into a Beam flag."""
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise AskedWrongly(
            f"--runner-option {text}: write it as key=value", hint="example: flink_master=host:8081"
        )
    return f"--{text.strip()}"


@contextmanager
def running(runner: BeamRunner) -> Iterator[Any]:
    """Yield a pipeline to build; it runs to completion when the block ends."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    embedded = runner.kind == "direct"
    flags = [f"--direct_num_workers={runner.processes}", *runner.flags] if embedded else list(runner.flags)
    with (
        _quiet(),
        on_loopback(),
        beam.Pipeline(runner=_built(runner), options=PipelineOptions(flags)) as made,
    ):
        yield made


def _built(runner: BeamRunner) -> Any:
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    if runner.kind != "direct":
        return CLUSTERS[runner.kind]
    if runner.processes == 1:
        return FnApiRunner()
    command = f"{shlex.quote(sys.executable)} -m {WORKER} 2>>{shlex.quote(runner.log)}"
    return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(command))


@contextmanager
def on_loopback() -> Iterator[None]:
    """Bind the ports of the embedded runner to loopback.

    Beam opens them on every interface, without authentication.
    """
    from apache_beam.runners.portability.fn_api_runner import worker_handlers

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


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Beam's warnings about clouds that are not installed and options that it chose itself."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
