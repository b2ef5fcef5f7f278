"""Computes how a run's model is partitioned over its processes, in a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.plan.hyperparameters import micro_batches_of
from windlass.spec.processes import PARTITION
from windlass.spec.run import Run


def describe_partition(
    run: Run, home: Path, *, speeds: Sequence[float] = (), memories: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the partition, the layers of each pipeline stage, and its theoretical idle time."""
    micro_batches = micro_batches_of(run.layout, run.batch_sequences, run.micro_batch_sequences)
    args = ["cut", "--shape", run.shape.model_dump_json(), "--layout", run.layout.model_dump_json()]
    args += ["--micro-batches", str(micro_batches)]
    for option, values in (("--speeds", speeds), ("--memories", memories)):
        if values:
            args += [option, ",".join(map(str, values))]
    with LocalProcess("cutter", PARTITION, args, home / "logs" / "cut.log") as process:
        return process.result()
