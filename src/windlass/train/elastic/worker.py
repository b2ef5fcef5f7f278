"""A worker of an elastic run: trains in one company after the other, and keeps its memory in between.

    lobby -> assignment -> form a group -> one common state -> train -> lobby ...

Input: the run's directory and who this worker is. What it holds survives the end of a generation: peers that
died, peers that came, another layout. The coordinator decides who is in a generation (elastic/membership.py);
here is what a member does.
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
from windlass.train import runtime_settings
from windlass.train.elastic import state_sync
from windlass.train.elastic.coordinator_client import CoordinatorClient
from windlass.train.elastic.error_summary import plain_reason
from windlass.train.event_log import EventLog
from windlass.train.ledger import Superseded
from windlass.train.loop import Outcome, StopSignals, load_run, run_loop, tell_start
from windlass.train.trainer import Trainer
from windlass.train.word2vec.start import prepare

STORE_S = 15.0
"""For a member to find the store of rank 0; whoever forms a group longer is given up by the coordinator."""
_LOST = re.compile(r"gloo|connection|socket|store|timed? ?out|peer|did not meet", re.IGNORECASE)


def work(folder: Path, worker: str, node: str, host: str, cores: tuple[int, ...]) -> int:
    """Be a worker until the run is over or it is dismissed; return the exit code."""
    speak_through(host)
    own = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    post = CoordinatorClient(
        folder, ElasticHello(role="worker", node=node, worker=worker, host=host, store=f"{host}:{own.port}")
    )
    record = EventLog(folder, rank=1, passes_on=post.tell)
    try:
        outcome = ElasticWorker(folder, worker, cores, post, record).run()
    except WindlassError as error:
        post.done("failed", error_event(error))
        return error.exit_code
    finally:
        record.close()
    post.done(outcome)
    return 0


@dataclass(frozen=True)
class Parted:
    """Why a generation ended here."""

    why: str
    outcome: Outcome = "left"


class ElasticWorker:
    """What a process keeps from one generation to the next."""

    def __init__(
        self, folder: Path, name: str, cores: tuple[int, ...], post: CoordinatorClient, record: EventLog
    ) -> None:
        self._folder, self._name, self._cores = folder, name, cores
        self._post, self._record = post, record
        self._trainer: Trainer | None = None
        self._going = False
        signal.signal(signal.SIGTERM, self._go)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> Outcome:
        """Take part in generations until one of them is the last."""
        why = "new"
        while True:
            assigned = self._post.lobby(self._step, why)
            if assigned is None:
                return "left"
            parted = self._generation(assigned)
            if parted.outcome != "left" or self._going:
                return parted.outcome
            why = parted.why

    @property
    def _step(self) -> int:
        return self._trainer.step_number if self._trainer is not None else 0

    def _go(self, _signal: int, _frame: object) -> None:
        """This machine is wanted for something else: leave at the next border."""
        self._going = True

    def _generation(self, assigned: Assign) -> Parted:
        """Train in one company, until it changes or all is done."""
        connections = GroupConnections()
        self._post.on_abandon = connections.cut
        self._post.forget_pace()
        try:
            if self._post.abandoned:  # before there was anything to cut
                return Parted("the generation was given up before it began")
            return Parted("border", self._train(assigned, connections))
        except (dist.DistError, RuntimeError, ProcessFailed) as error:
            reason = str(error).strip().partition("\n")[0]
            known = self._post.abandoned or isinstance(error, Superseded)
            if not known and not _LOST.search(reason):
                raise
            if self._trainer is not None:
                self._trainer.checkpoints.give_up()
            return Parted(plain_reason(reason))
        finally:
            self._post.on_abandon = _nothing

    def _train(self, assigned: Assign, connections: GroupConnections) -> Outcome:
        began_s = time.monotonic()
        run = self._run_for(assigned)
        self._record.take_rank(assigned.rank)
        with self._company(assigned, run):
            before, crew = self._trainer, _crew(assigned)
            if not prepare(run, self._folder, self._record, crew, self._called_away):
                return self._parted(run, crew)
            known = state_sync.tell(before, crew)
            state_sync.catch_up(before, known)
            if state_sync.behind(before, known):
                self._trainer = None
            trainer = self._join(run, assigned, before)
            trainer.ledger.guard = self._check_current
            nodes = [member.rpartition("-")[0] for member in assigned.members]
            if trainer.memory is not None:
                trainer.memory.regroup(crew, nodes)
            settled = state_sync.settle(trainer, before, known)
            connections.settle()
            self._trainer = trainer
            state_sync.tell_settled(trainer, settled, began_s)
            return run_loop(trainer, StopSignals(self._stopped, self._leaving, self._departing))

    def _called_away(self) -> bool:
        """Whether this worker shall stop or leave; whoever asks is still learning the first vectors."""
        self._post.at(0, "saving")
        return self._stopped() or self._leaving()

    def _parted(self, run: Run, crew: ProcessGroup) -> Outcome:
        """How a generation ends that has not begun to train."""
        if not any(crew.share(self._stopped())):
            return "left"
        self._record.tell("stopped", step=0, steps=run.steps)
        return "stopped"

    def _join(self, run: Run, assigned: Assign, before: Trainer | None) -> Trainer:
        member = RankInfo(assigned.rank, assigned.world, assigned.rendezvous)
        trainer = Trainer(
            run,
            self._folder,
            self._record,
            member,
            before=before,
            fill=False,
            generation=assigned.generation,
            watch=self._watch,
        )
        if assigned.generation == 1 or not self._record.last("started"):  # one may end before it trains
            tell_start(trainer)
        runtime_settings.begin(trainer)
        return trainer

    @contextmanager
    def _company(self, assigned: Assign, run: Run) -> Iterator[None]:
        """Meet the other members through the store of the first."""
        if assigned.world == 1:
            yield
            return
        store = PrefixStore(f"generation-{assigned.generation}", _open(assigned.rendezvous))
        member = RankInfo(assigned.rank, assigned.world, assigned.rendezvous)
        with gathered(store, member, device_of(run.job.machine)):
            yield

    def _run_for(self, assigned: Assign) -> Run:
        """Return the run as this generation does it: how the batch is divided follows the company."""
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
        """Refuse to write when the run goes on without this company, which was cut off and does not know.

        All that counts is in the run's directory, so that is where it is decided who may write there.
        """
        try:
            newest = int(json.loads((self._folder / MEMBERS).read_bytes())["generation"])
        except (OSError, ValueError, KeyError):
            return  # being written, or the store is away: whoever writes there will see
        if newest > generation:
            raise Superseded(f"generation {newest} goes on with the run; this is generation {generation}")

    def _watch(self, trainer: Trainer, phase: str) -> None:
        busy = trainer.busy_s / trainer.own_sequences if phase == "step" and trainer.busy_s else None
        self._post.at(trainer.step_number, phase, busy)

    def _stopped(self) -> bool:
        border = self._post.parting
        return border is not None and border.stop

    def _leaving(self) -> bool:
        return self._going or self._post.parting is not None

    def _departing(self) -> bool:
        border = self._post.parting
        return self._going or (border is not None and border.departs)


def _crew(assigned: Assign) -> ProcessGroup:
    return SingleProcess() if assigned.world == 1 else DistributedGroup()


def _open(address: str) -> Store:
    host, port = parse_address(address)
    wait = timedelta(seconds=STORE_S)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)


def _nothing() -> None:
    """No group to give up."""
