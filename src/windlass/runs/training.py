"""Training runs: prepared, started, followed, resumed.

    runs/NAME/1/, runs/NAME/2/ ...   each as spec.run describes

Starting a job makes a new run; resuming continues the newest unfinished one. No run overwrites another, so
starting again loses nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.cluster.launch.launcher import Launch, free_port, interrupts
from windlass.cluster.launch.local_ranks import RankTask
from windlass.cluster.launch.remote_ranks import NodeAgent
from windlass.cluster.launch.rendezvous import NodeGroup, Nodes, join_rendezvous
from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.corpus.growth import growth_of, sampled
from windlass.plan.count_models import Observed, plan_statistic
from windlass.plan.hyperparameters import adapted
from windlass.plan.local.calibrate import find_counted, find_experience
from windlass.plan.local.machine import measure_machine, measure_sorting
from windlass.plan.local.ngram import Growth
from windlass.plan.search import CorpusFacts, plan_run
from windlass.registry.versions import resolve_model
from windlass.runs.progress_line import ProgressLine
from windlass.spec.cluster import Cluster
from windlass.spec.config import network_from_config
from windlass.spec.errors import AskedWrongly, BadInput, NotFound, WindlassError
from windlass.spec.job import STATISTICS, Checkpoint, Corpus, Elastic, Job, TokenizerSpec
from windlass.spec.layout import Layout, check_layout
from windlass.spec.processes import TRAIN
from windlass.spec.protocol.progress import Report
from windlass.spec.protocol.server_registry import SERVERS
from windlass.spec.run import CHECKPOINTS, JOURNAL, RESULT, RUN_FILE, Run
from windlass.spec.shape import BertShape, Network
from windlass.spec.sync import Sync
from windlass.store.journal import Journal
from windlass.store.lock import locked
from windlass.store.manifest import load_manifest
from windlass.store.settings_file import forget_sync, resume_run
from windlass.store.store_dir import StoreDir

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def result(self) -> Path:
        return self.path / RESULT

    @property
    def finished(self) -> bool:
        return load_manifest(StoreDir(self.result)) is not None

    @property
    def step(self) -> int:
        """The newest checkpoint's step, 0 where there is none."""
        found = sorted(self.path.glob(f"{CHECKPOINTS}/step-*/manifest.json"))
        return int(found[-1].parent.name.removeprefix("step-")) if found else 0

    @property
    def result_digest(self) -> str:
        """Digest of the finished model; "" while there is none."""
        manifest = load_manifest(StoreDir(self.result))
        return manifest.digest if manifest else ""

    def load(self) -> Run:
        return Run.model_validate_json((self.path / RUN_FILE).read_bytes())


def runs_of(home: Path, name: str) -> list[RunFolder]:
    """List the runs of a job, oldest first."""
    folder = home / "runs" / name
    numbers = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.exists() else []
    found = [RunFolder(folder / str(number)) for number in numbers]
    return [run for run in found if (run.path / RUN_FILE).exists()]


def open_run(job: Job, home: Path, line: ProgressLine, *, resume: bool) -> RunFolder:
    """Find the run to resume, or make a new one."""
    if resume:
        return find_resumable(job, home)
    earlier = resumable(job, home)
    if earlier is not None:
        line.say(
            f"note: run {earlier.name} of this job stopped at step {earlier.step}; --resume continues it"
        )
    folder = prepare(job, home, line)
    line.close()
    return folder


def prepare(job: Job, home: Path, report: Report) -> RunFolder:
    """Build the corpus if necessary, plan, and write a new run."""
    run = plan_job(job, home, report)
    folder = home / "runs" / job.name
    with locked(folder / ".lock", f"the list of runs of {job.name}"):
        numbers = [int(p.name) for p in folder.iterdir() if p.name.isdigit()]
        target = folder / str(max(numbers, default=0) + 1)
        StoreDir(target).write(RUN_FILE, run.model_dump_json(indent=1).encode())
    return RunFolder(target)


def plan_job(job: Job, home: Path, report: Report) -> Run:
    """Make every choice that the job leaves open."""
    shape: Network | None = None
    start_from: Path | None = None
    if job.model.start_from is not None:
        _, start_from, _ = resolve_model(home, job.model.start_from)
        shape = _shape_of_start(start_from, job)
    path = build_corpus(_corpus_for(job, start_from), home, report)
    facts, machine = corpus_facts(path), measure_machine()
    if job.model.family in STATISTICS:
        return plan_statistic(job, facts, machine, observed(job, path, home))
    return plan_run(
        job,
        facts,
        machine,
        start_shape=shape,
        start_from=str(start_from) if start_from else None,
        experience=find_experience(home),
    )


def observed(job: Job, path: Path, home: Path) -> Observed:
    """Measure what the plan of a counted model depends on: text statistics and the machine."""
    correction = find_counted(home, job.model.family)
    if job.model.family != "ngram":
        return Observed(correction=correction)
    pieces = sampled(load_corpus(path).train)
    seen, kept = zip(*growth_of(pieces, job.model.ngram.thresholds), strict=True)
    growth = Growth(sum(map(len, pieces)), seen, kept)
    return Observed(growth, measure_sorting(), correction)


def corpus_facts(path: Path) -> CorpusFacts:
    corpus = load_corpus(path)
    return CorpusFacts(
        path=str(path),
        digest=corpus.digest,
        vocabulary=corpus.tokenizer.vocabulary,
        train_tokens=corpus.train.tokens,
        validation_tokens=corpus.validation.tokens,
    )


def newest_of(job: Job, home: Path) -> RunFolder | None:
    """Return the newest run of this job, finished or not."""
    return next((run for run in reversed(runs_of(home, job.name)) if _same(run.load().job, job)), None)


def resumable(job: Job, home: Path) -> RunFolder | None:
    """Return the newest run of this job that is unfinished."""
    same = (run for run in reversed(runs_of(home, job.name)) if _same(run.load().job, job))
    return next((run for run in same if not run.finished), None)


def find_resumable(job: Job, home: Path) -> RunFolder:
    """Return the run to resume, with the job's current layout; raise with the reason if there is none."""
    found = resumable(job, home)
    if found is not None:
        return relaid(found, job)
    runs = runs_of(home, job.name)
    if not runs:
        raise NotFound(f"job '{job.name}' has no run to resume", hint="leave out --resume to start one")
    newest = runs[-1]
    if newest.finished:
        raise BadInput(f"run {newest.name} has finished", hint="leave out --resume to start another")
    changed = _changed(_essence(newest.load().job).model_dump(), _essence(job).model_dump())
    raise BadInput(
        f"run {newest.name} was started with other settings: {', '.join(changed)}",
        hint="restore them to resume it, or leave out --resume to start another",
    )


def relaid(folder: RunFolder, job: Job) -> RunFolder:
    """Give a run the job's layout and sync policy, whatever it had before."""
    with locked(folder.path / ".lock", f"run {folder.name}"):
        before = folder.load()
        run = before.model_copy(update={"job": job})
        if job.layout != before.layout:
            run = adapted(run, job.layout, step=folder.step)
            check_layout(run.layout, run.shape, run.batch_sequences)
        if run != before:
            StoreDir(folder.path).write(RUN_FILE, run.model_dump_json(indent=1).encode())
        if job.sync != before.job.sync:
            forget_sync(folder.path)
    return folder


def train(folder: RunFolder, tell: Tell, *, node_group: NodeGroup | None = None, restarts: int = 0) -> bool:
    """Train in separate processes and follow them. Return False when the run was interrupted.

    After a crash all ranks are restarted from the last checkpoint, up to `restarts` times.
    """
    node_group = node_group or NodeGroup()
    with locked(folder.path / ".lock", f"run {folder.name}"):
        resume_run(folder.path)
        StoreDir(folder.path).remove(SERVERS)  # logs of earlier parameter servers are stale
        launch = Launch(node_group.rank_launchers(folder.load().layout.world, TRAIN))
        with interrupts(launch.interrupt):
            done = _launched(launch, folder, node_group.host, tell, restarts)
    node_group.finish(done=done)
    return done


def attend(nodes: Nodes, say: Callable[[str], None]) -> bool:
    """Run this machine's ranks of a run that node 0 leads. Return False when it was interrupted."""
    return NodeAgent(join_rendezvous(nodes), nodes.rank, TRAIN, say).run()


def _launched(launch: Launch, folder: RunFolder, host: str, tell: Tell, restarts: int) -> bool:
    while True:
        try:
            return launch.run(_task(folder, host), tell)
        except AskedWrongly:
            raise
        except WindlassError as failure:
            if not restarts or launch.stop_requests:
                raise
            restarts -= 1
            event = {"event": "restarted", "time": round(time.time(), 3), "step": folder.step}
            event |= {"message": failure.message, "restarts_left": restarts}
            Journal(StoreDir(folder.path), JOURNAL).append(event, sync=True)
            tell(event)


def _task(folder: RunFolder, host: str) -> RankTask:
    """Use a new rendezvous port for every start: the old one may still have connections in TIME_WAIT."""
    run = folder.load()
    port = free_port(host, os.getpid() + time.monotonic_ns()) if run.layout.world > 1 else 0
    return RankTask(str(folder.path), run.layout.world, f"{host}:{port}", run.job.machine.threads)


def _essence(job: Job) -> Job:
    """Return the settings that must be equal to resume a run: those that decide its result.

    Where and how it is computed, and where its checkpoints go, may change.
    """
    elastic = Elastic(deterministic=job.elastic.deterministic)
    changeable = {"layout": Layout(), "sync": Sync(), "elastic": elastic, "checkpoint": Checkpoint()}
    return job.model_copy(update={**changeable, "cluster": Cluster()})


def _same(one: Job, other: Job) -> bool:
    return _essence(one) == _essence(other)


def _shape_of_start(start_from: Path, job: Job) -> Network:
    """Return the shape of an existing model; its family must match the job's objective."""
    config = start_from / "config.json"
    shape = network_from_config(json.loads(config.read_text()), str(config))
    if (shape.family == "bert") != (job.model.family == "bert"):
        raise BadInput(
            f"[model] start_from: {job.model.start_from} is a {shape.family} model, not {job.model.family}",
            hint=f'set family = "{shape.family}"',
        )
    if isinstance(shape, BertShape) and not shape.masked_head:
        raise BadInput(
            f"[model] start_from: {job.model.start_from} has no head for masked tokens, which training needs",
            hint="start from the version of this model that was published as BertForMaskedLM",
        )
    return shape


def _corpus_for(job: Job, start_from: Path | None) -> Corpus:
    """Use an existing model's own tokenizer for its corpus."""
    if start_from is None or job.corpus.tokenizer.kind == "file":
        return job.corpus
    file = start_from / "tokenizer.json"
    if not file.exists():
        raise BadInput(f"{start_from}: has no tokenizer.json", hint="name one in [corpus.tokenizer] path")
    return job.corpus.model_copy(update={"tokenizer": TokenizerSpec(kind="file", path=str(file))})


def _changed(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    changed: list[str] = []
    for key in old:
        if isinstance(old[key], dict) and isinstance(new.get(key), dict):
            changed += _changed(old[key], new[key], f"{path}{key}.")
        elif old[key] != new.get(key):
            changed.append(f"{path}{key}")
    return changed
