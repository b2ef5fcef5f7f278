"""A worker of an elastic run: trains in one generation after another, and keeps its state in between.

    wait -> assignment -> process group -> one common state -> train -> wait ...

Input: the run's directory and the worker's identity. Its state survives the end of a generation: lost peers,
new peers, another layout. The coordinator decides who is in a generation (elastic/membership.py).
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from windlass.parallel.abort_comm import GroupConnections
from windlass.parallel.device import device_of
from windlass.parallel.device_mesh import gathered, speak_through
from windlass.parallel.process_group import DistributedGroup, ProcessGroup, SingleProcess
from windlass.plan.hyperparameters import choose_micro
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.layout import Layout
from windlass.spec.protocol.elastic import MEMBERS, Assign, ElasticHello
from windlass.spec.protocol.entrypoint import error_event
from windlass.spec.protocol.link import parse_address
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.train.elastic import state_sync
from windlass.train.elastic.coordinator_client import CoordinatorClient
from windlass.train.elastic.error_summary import plain_reason
from windlass.train.event_log import EventLog
from windlass.train.ledger import Superseded
from windlass.train.loop import Outcome, StopSignals, emit_start, load_run, run_loop
from windlass.train.trainer import Trainer
from windlass.train.word2vec.start import prepare

STORE_S = 15.0
"""Time for a member to connect to the store of rank 0; the coordinator aborts a group that takes longer."""
_LOST = re.compile(r"gloo|connection|socket|store|timed? ?out|peer|did not meet", re.IGNORECASE)


def work(folder: Path, worker: str, node: str, host: str, cores: tuple[int, ...]) -> int:
    """Run a worker until the run is over or it is dismissed; return the exit code."""
    speak_through(host)
    own = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    client = CoordinatorClient(
        folder, ElasticHello(role="worker", node=node, worker=worker, host=host, store=f"{host}:{own.port}")
    )
    record = EventLog(folder, rank=1, forward=client.send_event)
    try:
        outcome = ElasticWorker(folder, worker, cores, client, record).run()
    except WindlassError as error:
        client.done("failed", error_event(error))
        return error.exit_code
    finally:
        record.close()
    client.done(outcome)
    return 0


@dataclass(frozen=True)
class GenerationEnd:
    """Why a generation ended on this worker."""

    why: str
    outcome: Outcome = "left"


class ElasticWorker:
    """The state of a worker across generations."""

    def __init__(
        self, folder: Path, name: str, cores: tuple[int, ...], client: CoordinatorClient, record: EventLog
    ) -> None:
        self._folder, self._name, self._cores = folder, name, cores
        self._client, self._record = client, record
        self._trainer: Trainer | None = None
        self._leaving_run = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> Outcome:
        """Take part in generations until the last one."""
        why = "new"
        while True:
            assigned = self._client.wait_for_assignment(self._step, why)
            if assigned is None:
                return "left"
            ended = self._generation(assigned)
            if ended.outcome != "left" or self._leaving_run:
                return ended.outcome
            why = ended.why

    @property
    def _step(self) -> int:
        return self._trainer.step_number if self._trainer is not None else 0

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        """Leave the run at the next sync point: this machine is needed for something else."""
        self._leaving_run = True

    def _generation(self, assigned: Assign) -> GenerationEnd:
        """Train in one generation until it ends or the run is over."""
        connections = GroupConnections()
        self._client.on_abandon = connections.cut
        self._client.reset_pace()
        try:
            if self._client.abandoned:  # before `on_abandon` was set
                return GenerationEnd("the generation was aborted before it began")
            return GenerationEnd("drain", self._train(assigned, connections))
        except (dist.DistError, RuntimeError, ProcessFailed) as error:
            reason = str(error).strip().partition("\n")[0]
            known = self._client.abandoned or isinstance(error, Superseded)
            if not known and not _LOST.search(reason):
                raise
            if self._trainer is not None:
                self._trainer.checkpoints.give_up()
            return GenerationEnd(plain_reason(reason))
        finally:
            self._client.on_abandon = _nothing

    def _train(self, assigned: Assign, connections: GroupConnections) -> Outcome:
        began_s = time.monotonic()
        run = self._run_for(assigned)
        self._record.take_rank(assigned.rank)
        with self._process_group(assigned, run):
            before, group = self._trainer, _group(assigned)
            if not prepare(run, self._folder, self._record, group, self._interrupted):
                return self._ended_before_training(run, group)
            known = state_sync.exchange_states(before, group)
            state_sync.catch_up(before, known)
            if state_sync.behind(before, known):
                self._trainer = None
            trainer = self._join(run, assigned, before)
            trainer.ledger.guard = self._check_current
            nodes = [member.rpartition("-")[0] for member in assigned.members]
            if trainer.memory is not None:
                trainer.memory.regroup(group, nodes)
            settled = state_sync.settle(trainer, before, known)
            connections.settle()
            self._trainer = trainer
            state_sync.emit_settled(trainer, settled, began_s)
            return run_loop(trainer, StopSignals(self._stopped, self._leaving, self._departing))

    def _interrupted(self) -> bool:
        """Return True if this worker must stop or leave; polled while word2vec trains the vectors."""
        self._client.at(0, "saving")
        return self._stopped() or self._leaving()

    def _ended_before_training(self, run: Run, group: ProcessGroup) -> Outcome:
        """Return the outcome of a generation that ended before training."""
        if not any(group.all_gather_json(self._stopped())):
            return "left"
        self._record.emit("stopped", step=0, steps=run.steps)
        return "stopped"

    def _join(self, run: Run, assigned: Assign, before: Trainer | None) -> Trainer:
        member = RankInfo(assigned.rank, assigned.world, assigned.rendezvous)
        trainer = Trainer(
            run,
            self._folder,
            self._record,
            member,
            before=before,
            init_weights=False,
            generation=assigned.generation,
            watch=self._watch,
        )
        if assigned.generation == 1 or not self._record.last(
            "started"
        ):  # a generation may end before it trains
            emit_start(trainer)
        trainer.settings.apply_newest(trainer.step_number)
        return trainer

    @contextmanager
    def _process_group(self, assigned: Assign, run: Run) -> Iterator[None]:
        """Form the process group through the store of rank 0."""
        if assigned.world == 1:
            yield
            return
        store = PrefixStore(f"generation-{assigned.generation}", _open(assigned.rendezvous))
        member = RankInfo(assigned.rank, assigned.world, assigned.rendezvous)
        with gathered(store, member, device_of(run.job.machine)):
            yield

    def _run_for(self, assigned: Assign) -> Run:
        """Return the run for this generation: layout, micro-batch and threads follow its members."""
        run, layout = load_run(self._folder), Layout.model_validate(assigned.layout)
        micro = assigned.micro_batch_sequences
        if run.job.elastic.deterministic:
            micro = run.micro_batch_sequences
        elif micro is None:
            micro = choose_micro(run.job.train, layout, run.batch_sequences, run.micro_batch_sequences)
        return run.model_copy(
            update={
                "layout": layout,
                "micro_batch_sequences": micro,
                "threads": self._threads(run, assigned),
                "compile": False,
            }
        )

    def _threads(self, run: Run, assigned: Assign) -> int:
        """Share the cores of this machine; a deterministic run always computes with the same number.

        Sums inside a matrix product depend on how many threads divide it.
        """
        if run.job.machine.threads is not None:
            return run.job.machine.threads
        if run.job.elastic.deterministic:
            return max(1, run.threads // run.job.layout.world)
        node = self._name.rpartition("-")[0]
        here = sum(member.rpartition("-")[0] == node for member in assigned.members)
        return max(1, len(self._cores) // here) if self._cores else max(1, run.threads // here)

    def _check_current(self, generation: int) -> None:
        """Raise Superseded if a newer generation continues the run: this one was partitioned away.

        The run's directory holds everything that counts, so its members file decides who may write.
        """
        try:
            newest = int(json.loads((self._folder / MEMBERS).read_bytes())["generation"])
        except (OSError, ValueError, KeyError):
            return  # being written, or unreachable: then the write itself fails
        if newest > generation:
            raise Superseded(f"generation {newest} continues the run; this is generation {generation}")

    def _watch(self, trainer: Trainer, phase: str) -> None:
        busy = trainer.busy_s / trainer.own_sequences if phase == "step" and trainer.busy_s else None
        self._client.at(trainer.step_number, phase, busy)

    def _stopped(self) -> bool:
        drain = self._client.drain_request
        return drain is not None and drain.stop

    def _leaving(self) -> bool:
        return self._leaving_run or self._client.drain_request is not None

    def _departing(self) -> bool:
        drain = self._client.drain_request
        return self._leaving_run or (drain is not None and drain.departs)


def _group(assigned: Assign) -> ProcessGroup:
    return SingleProcess() if assigned.world == 1 else DistributedGroup()


def _open(address: str) -> Store:
    host, port = parse_address(address)
    wait = timedelta(seconds=STORE_S)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)


def _nothing() -> None:
    """The default: no group to abort."""
