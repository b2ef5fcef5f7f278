"""A run in memory: the model, its optimizer, its data, and how far they have come.

Input: a Run and which of its processes this is. `step` advances the weights once; `evaluate`, `sample` and
`save` do what their names say and tell the record. All processes call them together. Nothing here decides
when: that is loop.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.corpus.batches import DIGEST_BITS
from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.parallel.device import place_process
from windlass.parallel.schedule import propose_recut
from windlass.parallel.strategy import Strategy, undivided
from windlass.spec.errors import BadInput, StoreFailed
from windlass.spec.layout import Partition
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.settings import Settings
from windlass.train.checkpoint.async_save import NOTHING, State
from windlass.train.checkpoint.manager import CheckpointManager
from windlass.train.checkpoint.peer_memory import MemoryTier
from windlass.train.checkpoint.shard import claims_of, take_part
from windlass.train.compile_model import compiled
from windlass.train.data_loader import DataLoader
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.event_log import EventLog
from windlass.train.ledger import SampleLedger
from windlass.train.optimize import build_optimizer, rate_of, set_rate
from windlass.train.placement import settle_run
from windlass.train.sample import continue_tokens
from windlass.train.settings_file import newest_request
from windlass.train.step_sync import RankReport, StepResult, reduced
from windlass.train.sync.data_parallel import DataParallel
from windlass.train.sync.deterministic_reduce import OrderedSum, not_repeatable

Ended = TypeVar("Ended")

SAMPLE_TOKENS = 48
REMEMBER_EVERY_S, REMEMBER_SHARE = 1.0, 0.01
"""Between borders that an elastic run of a divided model keeps in memory, twice; and the most of its time
that this may take."""
KINDS = ("momentum", "residual")
"""What the exchange between replicas may keep with each weight (train/sync/data_parallel.py)."""


Watch = Callable[["Trainer", str], None]
"""Is told what a trainer begins to do: step, evaluating, saving or paused."""


def _unwatched(_trainer: Trainer, _phase: str) -> None:
    """Nobody looks."""


class Trainer:
    """Everything that a run changes, as far as this process holds it."""

    saves_beside = True
    """Whether checkpoints may be written while training goes on."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        record: EventLog,
        member: RankInfo | None = None,
        *,
        before: Trainer | None = None,
        fill: bool = True,
        generation: int = 0,
        watch: Watch = _unwatched,
    ) -> None:
        """Build a run's part of this process.

        With `before`, this process was in the run already, among others: what it holds is kept where it has
        the same form. Without `fill`, the weights are left without values. `watch` is told what it does.
        """
        self.run = self.planned = run
        self.folder, self.record, self.generation = folder, record, generation
        self._watch = watch
        member = member or RankInfo()
        self.device = place_process(run.job.machine, len(member.cores) or run.threads, member.rank)
        self.corpus: BuiltCorpus = before.corpus if before is not None else load_corpus(Path(run.corpus))
        self.step_number, self.samples, self.train_s = 0, 0, 0.0
        self.taken, self.sync = 0, run.job.sync
        self.settings: Settings | None = None
        """What the run was asked to change while it goes on (runtime_settings.py); `planned` is without it."""
        self.checkpoints: CheckpointManager = (
            CheckpointManager(folder, run.job, record.tell) if before is None else before.checkpoints
        )
        self.memory: MemoryTier | None = None if before is None else before.memory
        """The state of the last borders, twice, where every process holds something that no other has."""
        self.ledger: SampleLedger = SampleLedger(record, generation) if before is None else before.ledger
        self._read_digest = 0
        """Of the positions that were read here since the replicas last agreed."""
        self.ready = False
        """Whether the gradients of the next step are complete and clipped."""
        self.peak: float | None = None
        """FLOP/s of a process of this run, where somebody has measured it before."""
        self.busy_s = 0.0
        """Own computing of the last step, without waiting for others."""
        self._update_s, self._remember_after_s = 0.0, time.monotonic() + REMEMBER_EVERY_S
        self.grid, cut = settle_run(run, folder, self.device)
        self._assemble(cut, before=before, fill=fill)

    def _assemble(self, cut: Partition, *, before: Trainer | None = None, fill: bool = True) -> None:
        """Build what depends on the cut and on the company."""
        run, at = self.run, self.grid.at
        keeps = before is not None and undivided(before.run.layout) and undivided(run.layout)
        self.strategy: Strategy
        self.optimizer: torch.optim.Optimizer
        if before is not None and keeps:
            self.strategy, self.optimizer = before.strategy, before.optimizer
            self.strategy.move(run, self.grid)
        else:
            self.strategy = Strategy(run, self.grid, cut, fill=fill, folder=self.folder)
            if run.compile and self.strategy.whole and run.layout.sharded == 1:
                self.strategy.forward = compiled(self.strategy.stages[0].model, self.record)
            self.optimizer = build_optimizer(self.strategy.held.holdings, run)
        self.replica = at["dp"] * run.layout.sharded + at["sharded"]
        self.replicas = DataParallel(self.strategy.held.holdings, self.grid.group("dp"), self.sync)
        self.ordered = self._ordered() if run.job.elastic.deterministic else None
        own = None if self.ordered is None else [self._part(dp) for dp in self.ordered.own]
        self.feed = DataLoader(run, self.corpus, self.replica, own)
        self._near = self.grid.group("pp", "sharded", "cp", "tp")

    def _ordered(self) -> OrderedSum:
        """The job's own number of replicas decides in which order gradients are added up."""
        reason = next(not_repeatable(self.run.job), None)
        if reason is not None:
            raise BadInput(f"[elastic] deterministic = true: {reason}")
        return OrderedSum(self.strategy.held.holdings, self.grid.group("dp"), self.run.job.layout.dp)

    def _part(self, dp: int) -> int:
        """Return which part of the batch replica `dp` of the job has here."""
        return dp * self.run.layout.sharded + self.grid.at["sharded"]

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        state, extra, passed_over = self.checkpoints.restore(
            self.strategy.held.holdings,
            self.optimizer,
            crew=self.grid.crew,
            extra_kinds=KINDS,
            replica=self._own_replica,
        )
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        if state is not None:
            self.stand_at(state)
            self.strategy.held.follow()
            self.replicas.load_state(extra, state.step)
            self.tell_resumed("checkpoint")

    def stand_at(self, state: State) -> None:
        """Count from a state, whose tensors are loaded apart."""
        self.step_number, self.samples, self.train_s = state.step, state.samples, state.train_s
        self._read_digest = 0
        self.ledger.begin(state.step, state.samples)

    def tell_resumed(self, source: str) -> None:
        self.record.tell(
            "resumed",
            step=self.step_number,
            samples=self.samples,
            generation=self.generation,
            layout=str(self.run.layout),
            source=source,
        )

    def step(self, *, stop: bool = False, leave: bool = False) -> StepResult:
        """Advance the weights once.

        The step is agreed on before the weights change: whoever hears that all gradients are complete goes
        on, and so a survivor of a fault is either before this step with them, or behind it.
        """
        self._watch(self, "step")
        begin = time.perf_counter()
        rate = rate_of(self.run, self.step_number)
        set_rate(self.optimizer, rate)
        loss = self._learn()
        learned = time.perf_counter()
        self._exchange()
        norm = self.strategy.held.clip(self.run.job.train.clip or math.inf)
        self.ready = True
        facts = self._agree(loss, norm, rate, begin, stop=stop, leave=leave)
        self.ledger.spend("communication", time.perf_counter() - learned)
        self.advance(facts.digest if facts.agreed else None)
        return facts

    def advance(self, digest: int | None) -> None:
        """Let the step happen whose gradients are complete.

        `digest` is that of all samples since replicas last agreed, None where they have not again.
        """
        begin = time.perf_counter()
        self.checkpoints.finish_copy()  # of the weights as they were
        stalled = time.perf_counter()
        self.ledger.spend("checkpoint", stalled - begin)
        self.ready = False
        self.optimizer.step()
        self.strategy.held.clear()
        self.step_number, self.samples = self.step_number + 1, self.samples + self.run.batch_sequences
        self._update_s = time.perf_counter() - stalled
        self.ledger.spend("compute", self._update_s)
        self.replicas.after_update(self.step_number, self.train_s + self._update_s)
        self.strategy.held.follow()
        if digest is not None:
            self._read_digest = 0
            self.ledger.commit(self.step_number, self.samples, digest)

    def _learn(self) -> Tensor:
        """Add up this process's gradients; in a deterministic run those of each part apart."""
        begin, self.feed.digest, waited = time.perf_counter(), 0, 0.0
        losses: list[Tensor] = []
        for part in self.feed.parts:
            asked = time.perf_counter()
            batches = self.feed.batches(self.samples, part)
            waited += time.perf_counter() - asked
            losses.append(self.strategy.learn(batches, self._asked))
            self.strategy.held.collect()
            if self.ordered is not None:
                self.ordered.keep(part // self.run.layout.sharded)
                self.strategy.held.clear()
        self.busy_s = time.perf_counter() - begin - waited
        self._read_digest = (self._read_digest + self.feed.digest) % (1 << DIGEST_BITS)
        self.ledger.spend("data", waited)
        self.ledger.spend("compute", self.busy_s)
        return torch.stack(losses).sum()

    def _exchange(self) -> None:
        """Let every replica have the sum of all gradients."""
        if self.ordered is not None:
            self.ordered.add_up()
        else:
            self.replicas.after_backward(self.step_number)

    def agree(self) -> None:
        """Let all replicas hold equal weights."""
        self.replicas.agree()
        self.strategy.held.follow()

    def evaluate(self, sequences: int | None) -> Evaluation:
        """Measure on held-out text."""
        self._watch(self, "evaluating")
        begin = time.perf_counter()
        self.agree()
        result = evaluate(
            self.strategy.look,
            self.corpus.validation,
            self.feed.objective,
            context=self.run.network.context,
            sequences=sequences,
            share=(self.replica, self.run.layout.replicas),
            add_up=self._add_up,
            report=self.record.tell_progress,
        )
        self.strategy.rest()
        self.ledger.spend("evaluation", time.perf_counter() - begin)
        self.record.tell("evaluation", step=self.step_number, **asdict(result))
        self.record.plot(
            self.step_number, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def sample(self) -> None:
        """Show what the model would write, where each process of a row can compute scores by itself."""
        if self.run.objective != "causal" or not self.strategy.whole:
            return
        begin, tokenizer, run = time.perf_counter(), self.corpus.tokenizer, self.run
        for prompt in run.job.train.sample_prompts or ("",):
            ids = continue_tokens(
                self.strategy.last_scores,
                tokenizer.encode(prompt),
                SAMPLE_TOKENS,
                context=run.network.context,
                seed=run.job.seed,
                end=tokenizer.end_id,
            )
            text = prompt + tokenizer.decode(ids)
            self.record.tell("sample", step=self.step_number, text=text)
            self.record.plot_text(self.step_number, "sample", text)
        self.strategy.rest()
        self.ledger.spend("evaluation", time.perf_counter() - begin)

    def save(self) -> Path:
        """Write a checkpoint and wait for it."""
        self.begin_save(beside=False)
        return self.end_save_now()

    def begin_save(self, *, beside: bool = True) -> None:
        """Start to write a checkpoint, beside the steps that follow if asked so.

        One that is still under way is finished first; if it fails, this one is the better for it. A failure
        is told, and costs no more than the checkpoint; where somebody waits for it, it is raised.
        """
        self._watch(self, "saving")
        if self.checkpoints.saving:
            self.end_save()  # which writes the ledger before
        begin = time.perf_counter()
        self.agree()
        began = self.checkpoints.begin(
            State(self.step_number, self.samples, self.train_s),
            self.strategy.held.holdings,
            self.optimizer,
            crew=self.grid.crew,
            layout=self.run.layout,
            cut=self.strategy.cut,
            extra=self.replicas.state(),
            replica=self._own_replica,
            beside=beside,
        )
        self.ledger.spend("checkpoint", time.perf_counter() - begin)
        if not began and not beside:
            raise StoreFailed(
                f"{self.folder / CHECKPOINTS}: the checkpoint of step {self.step_number} failed"
            )

    def end_save(self) -> None:
        """Let the checkpoint be committed whose bytes are written everywhere."""
        self._end(self.checkpoints.end)

    def end_save_now(self) -> Path:
        """Wait until the checkpoint is written everywhere, and commit it."""
        return self._end(self.checkpoints.end_now)

    def _end(self, end: Callable[[], Ended]) -> Ended:
        self._watch(self, "saving")
        begin = time.perf_counter()
        self.ledger.check()
        self.ledger.write(durable=True)  # no checkpoint may know of samples that the ledger does not
        try:
            return end()
        finally:
            self.ledger.spend("checkpoint", time.perf_counter() - begin)

    def remember(self) -> None:
        """Keep the state of this border in memory, here and at a buddy."""
        if self.memory is None:
            self.memory = MemoryTier(self.grid.crew)
        begin, holdings = time.perf_counter(), self.strategy.held.holdings
        part = take_part(holdings, self.optimizer, NOTHING, keys=claims_of(holdings, None), replica=None)
        self.memory.keep(part, State(self.step_number, self.samples, self.train_s), self.run.layout)
        took_s = time.perf_counter() - begin
        self._remember_after_s = time.monotonic() + max(REMEMBER_EVERY_S, took_s / REMEMBER_SHARE)
        self.ledger.spend("checkpoint", took_s)

    def balance(self) -> None:
        """Look whether the stages of a pipeline have drifted apart; to be called right after `save`."""
        layout, pipeline = self.run.layout, self.strategy.pipeline
        if pipeline is None or layout.recut == "off":
            return
        told = self.grid.crew.share(pipeline.take_busy())
        seconds = [max(busy.get(str(n), 0.0) for busy in told) for n in range(layout.stage_count)]
        better = propose_recut(self.strategy.cut, self.run.network, layout, seconds)
        if better is None:
            return
        stages = [piece.until - piece.first for piece in better.pieces]
        applied = layout.recut == "apply"
        self.record.tell("recut", step=self.step_number, seconds=seconds, stages=stages, applied=applied)
        if applied:
            self._assemble(better)
            self.restore()

    @property
    def own_sequences(self) -> int:
        """How many sequences of a batch this process computes."""
        return sum(len(self.feed.positions(0, part)) for part in self.feed.parts)

    def pause(self) -> None:
        """Say that nothing is computed on purpose."""
        self._watch(self, "paused")

    @property
    def _own_replica(self) -> int | None:
        """Which replica this is where they walk apart, None where all are the same."""
        return self.grid.at["dp"] if self.sync.local and self.run.layout.dp > 1 else None

    @property
    def _asked(self) -> int:
        """The answers that a gradient is the mean over: of all replicas that add up theirs."""
        layout = self.run.layout
        return self.feed.asked(of_replicas=layout.sharded if self.sync.local else layout.replicas)

    def _add_up(self, known: Tensor) -> Tensor:
        """Add up over all processes what each knows of a loss; those along tp know the same."""
        if self.run.layout.world > 1:
            known = known / self.run.layout.tp
            dist.all_reduce(known)
        return known

    def _agree(
        self, loss: Tensor, norm: float, rate: float, begin: float, *, stop: bool, leave: bool
    ) -> StepResult:
        """Let everybody know the loss, the time, the samples, and what was asked of any process meanwhile."""
        layout, sync, step, first = self.run.layout, self.sync, self.step_number + 1, self.grid.crew.rank == 0
        agreed = self.replicas.at_border(step) or (not self.replicas.has_borders and step % sync.every == 0)
        seconds = time.perf_counter() - begin + self._update_s
        told = RankReport(
            loss=float(loss) / layout.tp,
            train_s=self.train_s + seconds,
            digest=self._read_digest if agreed and self._reads else 0,
            stop=stop,
            leave=leave,
            request=newest_request(self.folder) if first else 0,
            written=self.checkpoints.written,
            due=first and self.checkpoints.due(),
            forgets=first and self._forgets,
        )
        row = torch.tensor(told.numbers(), dtype=torch.float64)
        group = None if agreed else self._near
        if layout.world > 1 and (agreed or group is not None):
            dist.all_reduce(row, group=group)
        found = reduced(row.tolist(), agreed=agreed)
        self.train_s = found.train_s
        # Replicas that walk apart each know the mean over their own samples.
        mean = found.loss / (layout.dp if agreed and sync.local else 1)
        return replace(found.facts, loss=mean, gradient_norm=norm, rate=rate, seconds=seconds)

    @property
    def _forgets(self) -> bool:
        """Whether a lost process would take something with it that is in memory nowhere else."""
        alone = not undivided(self.run.layout) and self.generation > 0
        return alone and time.monotonic() >= self._remember_after_s

    @property
    def _reads(self) -> bool:
        """Whether this process is the one of its replica that answers for the samples."""
        return self.grid.at["pp"] == self.grid.at["cp"] == self.grid.at["tp"] == 0
