"""The layouts that `windlass plan verify` runs: every kind of parallelism, at several sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from windlass.spec.job import Job
from windlass.spec.layout import parse_layout

SMALL = {"width": 192, "layers": 4, "heads": 4, "context": 128}
MIDDLE = {"width": 320, "layers": 6, "heads": 4, "context": 256}
LARGE = {"width": 512, "layers": 8, "heads": 8, "context": 256}
MAX_PROCESSES = 4
"""Sizes that divide heads and layers of all three models; further cores become threads."""


@dataclass(frozen=True)
class PlanTrial:
    """One layout of one model."""

    name: str
    layout: str
    batch: int
    micro_batch: int
    threads: int
    """Threads of a single process."""
    model: dict[str, Any] = field(default_factory=dict)
    """Differences from the job's own model."""

    def job(self, job: Job, steps: int) -> Job:
        """Return the job of this trial."""
        train = {"steps": steps, "tokens": None, "time": None, "log_every": 1, "warmup_steps": 0}
        train |= {"batch_sequences": self.batch, "micro_batch_sequences": self.micro_batch}
        machine = {"threads": self.threads, "compile": "off", "precision": "float32", "device": "cpu"}
        return job.model_copy(
            update={
                "model": job.model.model_copy(update=self.model),
                "train": job.train.model_copy(update=train),
                "machine": job.machine.model_copy(update=machine),
                "layout": parse_layout(self.layout),
            }
        )


def trials_for(cores: int, job_model: bool) -> list[PlanTrial]:
    """Return the trials for a machine, the most informative first; for a job's own model only its layouts."""
    world = 1 << (min(cores, MAX_PROCESSES).bit_length() - 1)
    if job_model:
        return list(_divisions("own", {}, world, cores, batch=8 * world))
    middle = list(_divisions("middle", MIDDLE, world, cores, batch=4 * world))
    return [*middle, *_sizes(world, cores)]


def _divisions(
    name: str, model: dict[str, Any], world: int, cores: int, *, batch: int
) -> Iterator[PlanTrial]:
    """Yield every kind of layout of one model."""

    def trial(what: str, layout: str, micro_batch: int, threads: int = cores) -> PlanTrial:
        return PlanTrial(f"{name}-{what}", layout, batch, micro_batch, threads, model)

    yield trial("threads", "", batch)
    yield trial("one-thread", "", batch // 2, threads=1)
    yield trial("micro-batches", "", 2)
    if world > 1:
        yield trial("dp", f"dp={world}", batch // world)
        yield trial("sharded", f"sharded={world}", batch // world)
        yield trial("tp", f"tp={world}", batch // 2)
        yield trial("pp", f"pp={world}", 1)
        yield trial("gpipe", f"pp={world},schedule=gpipe", 2)


def _sizes(world: int, cores: int) -> Iterator[PlanTrial]:
    """Yield a smaller and a larger model, with the most expensive layouts."""
    yield PlanTrial("small-threads", "", 16, 16, cores, SMALL)
    yield PlanTrial("large-threads", "", 4, 4, cores, LARGE)
    if world > 1:
        yield PlanTrial("small-dp", f"dp={world}", 8 * world, 8, cores, SMALL)
        yield PlanTrial("large-dp", f"dp={world}", 2 * world, 2, cores, LARGE)
        yield PlanTrial("large-sharded", f"sharded={world}", 2 * world, 1, cores, LARGE)
        yield PlanTrial("large-tp", f"tp={world}", 4, 4, cores, LARGE)
    yield PlanTrial("small-one-thread", "", 16, 4, 1, SMALL)
    yield PlanTrial("large-recompute", "recompute=full", 4, 2, cores, LARGE)
