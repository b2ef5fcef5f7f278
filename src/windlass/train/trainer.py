"""A run in memory: the model, its optimizer, its data, and their progress.

Input: a Run and the rank of this process. `train_step` advances the weights once; `evaluate`, `sample` and
`save` do what their names say and log events. All processes call them together. loop.py decides when.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.corpus.batches import DIGEST_BITS
from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.parallel.device import place_process
from windlass.parallel.schedule import propose_recut
from windlass.parallel.strategy import Batch, Strategy, undivided
from windlass.spec.errors import BadInput
from windlass.spec.layout import Partition
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.train.checkpoint.async_save import NOTHING, State
from windlass.train.checkpoint.checkpointer import Checkpointer
from windlass.train.checkpoint.peer_memory import MemoryTier
from windlass.train.checkpoint.shard import claims_of, take_part
from windlass.train.compile_model import compiled
from windlass.train.data_loader import DataLoader
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.event_log import EventLog
from windlass.train.ledger import SampleLedger
from windlass.train.optimize import build_optimizer, rate_of, set_rate
from windlass.train.placement import settle_run
from windlass.train.runtime_settings import RuntimeSettings, newest_request
from windlass.train.sample import continue_tokens
from windlass.train.step_sync import RankReport, StepResult, reduced
from windlass.train.sync.data_parallel import DataParallel
from windlass.train.sync.deterministic_reduce import OrderedSum, not_repeatable
from windlass.train.sync.replicated_params import ReplicatedParams

SAMPLE_TOKENS = 48
REMEMBER_EVERY_S, REMEMBER_SHARE = 1.0, 0.01
"""Minimum interval between the steps that an elastic run of a sharded model keeps in peer memory, and the
maximum share of its time that this may take."""
KINDS = ("momentum", "residual")
"""Kinds of sync state that may exist for each weight (train/sync/data_parallel.py)."""


Watch = Callable[["Trainer", str], None]
"""Called when a trainer enters a phase: step, evaluating, saving or paused."""


def _unwatched(_trainer: Trainer, _phase: str) -> None:
    """The default: do nothing."""


class Trainer:
    """This process's part of everything that a run changes."""

    saves_in_background = True
    """True if checkpoints may be written in the background."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        record: EventLog,
        member: RankInfo | None = None,
        *,
        before: Trainer | None = None,
        init_weights: bool = True,
        generation: int = 0,
        watch: Watch = _unwatched,
    ) -> None:
        """Build this process's part of a run.

        `before` is the trainer of this process in the previous generation; its tensors are kept if they have
        the same form. Without `init_weights`, the weights have no values yet. `watch` is called with each
        phase.
        """
        self.run = run
        self.folder, self.record, self.generation = folder, record, generation
        self._watch = watch
        member = member or RankInfo()
        self.device = place_process(run.job.machine, len(member.cores) or run.threads, member.rank)
        self.corpus: BuiltCorpus = before.corpus if before is not None else load_corpus(Path(run.corpus))
        self.step_number, self.samples, self.train_s = 0, 0, 0.0
        self.sync = run.job.sync
        self.memory: MemoryTier | None = None if before is None else before.memory
        """Copies of the last sync points in peer memory, for layouts without redundancy."""
        self.ledger: SampleLedger = SampleLedger(record, generation) if before is None else before.ledger
        self.checkpoints: Checkpointer = (
            Checkpointer(folder, run.job, record.emit, self.ledger.flush)
            if before is None
            else before.checkpoints
        )
        self._read_digest = 0
        """Digest of the positions read by this process since the replicas last synchronised."""
        self.ready = False
        """True if the gradients of the next step are complete and clipped."""
        self.peak: float | None = None
        """Peak FLOP/s of a process of this run, if already measured."""
        self.busy_s = 0.0
        """Compute time of the last step, without waiting for other ranks."""
        self._update_s, self._remember_after_s = 0.0, time.monotonic() + REMEMBER_EVERY_S
        self.grid, cut = settle_run(run, folder, self.device)
        self._assemble(cut, before=before, init_weights=init_weights)
        self.settings = RuntimeSettings(run, folder, record, self.grid.world_group, self.follow)

    def _assemble(self, cut: Partition, *, before: Trainer | None = None, init_weights: bool = True) -> None:
        """Build what depends on the cut and on the process group."""
        run, at = self.run, self.grid.at
        keeps = before is not None and undivided(before.run.layout) and undivided(run.layout)
        self.strategy: Strategy
        self.optimizer: torch.optim.Optimizer
        if before is not None and keeps:
            self.strategy, self.optimizer = before.strategy, before.optimizer
            self.strategy.move(run, self.grid)
        else:
            self.strategy = Strategy(run, self.grid, cut, init_weights=init_weights, folder=self.folder)
            if run.compile and self.strategy.whole and run.layout.sharded == 1:
                self.strategy.forward = compiled(self.strategy.stages[0].model, self.record)
            self.optimizer = build_optimizer(self.strategy.params.holdings, run)
        self.replica = at["dp"] * run.layout.sharded + at["sharded"]
        self.replicas = DataParallel(self.strategy.params.holdings, self.grid.group("dp"), self.sync)
        ordered = self._ordered() if run.job.elastic.deterministic else None
        self.weights = ReplicatedParams(self.strategy.params, self.optimizer, self.replicas, ordered)
        own = None if ordered is None else [self._part(dp) for dp in ordered.own]
        self.feed = DataLoader(run, self.corpus, self.replica, own)
        self._near = self.grid.group("pp", "sharded", "cp", "tp")

    def _ordered(self) -> OrderedSum:
        """Return the ordered sum; the job's own number of replicas determines the order of addition."""
        reason = next(not_repeatable(self.run.job), None)
        if reason is not None:
            raise BadInput(f"[elastic] deterministic = true: {reason}")
        return OrderedSum(self.strategy.params.holdings, self.grid.group("dp"), self.run.job.layout.dp)

    def _part(self, dp: int) -> int:
        """Return the part of the batch of the job's replica `dp`."""
        return dp * self.run.layout.sharded + self.grid.at["sharded"]

    def restore(self) -> None:
        """Load the newest intact checkpoint, if there is one."""
        state, extra, skipped = self.checkpoints.load(
            self.strategy.params.holdings,
            self.optimizer,
            group=self.grid.world_group,
            extra_kinds=KINDS,
            replica=self._own_replica,
        )
        for reason in skipped:
            self.record.emit("warning", message=f"checkpoint skipped: {reason}")
        if state is not None:
            self.set_state(state)
            self.strategy.params.sync_tied()
            self.replicas.load_state(extra, state.step)
            self.emit_resumed("checkpoint")

    def set_state(self, state: State) -> None:
        """Set step, samples and time; the tensors are loaded separately."""
        self.step_number, self.samples, self.train_s = state.step, state.samples, state.train_s
        self._read_digest = 0
        self.ledger.begin(state.step, state.samples)

    def emit_resumed(self, source: str) -> None:
        self.record.emit(
            "resumed",
            step=self.step_number,
            samples=self.samples,
            generation=self.generation,
            layout=str(self.run.layout),
            source=source,
        )

    def follow(self, run: Run) -> None:
        """Continue with other settings; replicas change their sync policy from equal weights on."""
        self.run = run
        self.feed.follow(run)
        sync = run.job.sync
        if sync == self.sync:
            return
        if not self.replicas.at_sync_point(self.step_number):
            self.weights.average_now()
        self.sync = sync
        self.replicas.change(sync)

    def train_step(self, *, stop: bool = False, drain: bool = False) -> StepResult:
        """Advance the weights once: load a batch, forward and backward, reduce, clip, agree, update, commit.

        The ranks agree that all gradients are complete before any weights change. So after a fault a
        surviving rank either has done this step, or has complete gradients to catch up, or all are still
        before it.
        """
        self._watch(self, "step")
        begin = time.perf_counter()
        rate = rate_of(self.run, self.step_number)
        set_rate(self.optimizer, rate)

        losses: list[Tensor] = []
        data_s, compute_from = 0.0, time.perf_counter()
        for part in self.feed.parts:  # one, or several in a deterministic run
            batches, seconds = self._load_batch(part)
            data_s += seconds
            losses.append(self.strategy.forward_backward(batches, self._num_targets))
            self.weights.collect(part // self.run.layout.sharded)
        self.busy_s = time.perf_counter() - compute_from - data_s
        self.ledger.spend("data", data_s)
        self.ledger.spend("compute", self.busy_s)

        with self.ledger.timed("communication"):
            self.weights.reduce(self.step_number)
            norm = self.weights.clip(self.run.job.train.clip or math.inf)
            self.ready = True
            loss = torch.stack(losses).sum()
            result = self._agree(loss, norm, rate, begin, stop=stop, drain=drain)

        self.update()
        if result.agreed:
            self.commit(result.digest)
        return result

    def update(self) -> None:
        """Apply the complete gradients."""
        with self.ledger.timed("checkpoint"):
            self.checkpoints.finish_copy()  # of the weights as they were
        self.ready = False
        self.step_number, self.samples = self.step_number + 1, self.samples + self.run.batch_sequences
        self._update_s = self.weights.update(self.step_number, self.train_s)
        self.ledger.spend("compute", self._update_s)

    def commit(self, digest: int) -> None:
        """Record the samples of all steps since the last sync point; `digest` covers them on all ranks."""
        self._read_digest = 0
        self.ledger.commit(self.step_number, self.samples, digest)

    def _load_batch(self, part: int) -> tuple[list[Batch], float]:
        """Load a part of the next batch as micro-batches; also return the seconds that it took."""
        begin, self.feed.digest = time.perf_counter(), 0
        batches = self.feed.batches(self.samples, part)
        self._read_digest = (self._read_digest + self.feed.digest) % (1 << DIGEST_BITS)
        return batches, time.perf_counter() - begin

    def evaluate(self, sequences: int | None) -> Evaluation:
        """Evaluate on held-out text."""
        self._watch(self, "evaluating")
        with self.ledger.timed("evaluation"):
            self.weights.average_now()
            result = evaluate(
                self.strategy.eval_loss,
                self.corpus.validation,
                self.feed.objective,
                context=self.run.network.context,
                sequences=sequences,
                share=(self.replica, self.run.layout.replicas),
                add_up=self._add_up,
                report=self.record.emit_progress,
            )
            self.strategy.reshard()
        self.record.emit("evaluation", step=self.step_number, **asdict(result))
        self.record.plot(
            self.step_number, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def sample(self) -> None:
        """Log samples of the model, if this layout can compute scores without a pipeline."""
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
            self.record.emit("sample", step=self.step_number, text=text)
            self.record.plot_text(self.step_number, "sample", text)
        self.strategy.reshard()
        self.ledger.spend("evaluation", time.perf_counter() - begin)

    def save(self, *, wait: bool = True) -> Path:
        """Write a checkpoint and return its path; without `wait`, in the background.

        A checkpoint that is still in progress is finished first. In the background a failure is logged and
        does not end the run.
        """
        self._watch(self, "saving")
        self.poll_save()
        with self.ledger.timed("checkpoint"):
            self.weights.average_now()
            return self.checkpoints.save(
                State(self.step_number, self.samples, self.train_s),
                self.strategy.params.holdings,
                self.optimizer,
                group=self.grid.world_group,
                layout=self.run.layout,
                cut=self.strategy.cut,
                extra=self.replicas.state(),
                replica=self._own_replica,
                wait=wait,
            )

    def poll_save(self) -> None:
        """Commit the checkpoint in progress, if there is one; waits for ranks that still write it."""
        if self.checkpoints.saving:
            self._watch(self, "saving")
            with self.ledger.timed("checkpoint"):
                self.checkpoints.poll()

    def keep_in_memory(self) -> None:
        """Keep the state of this sync point in memory, on this rank and on a peer."""
        if self.memory is None:
            self.memory = MemoryTier(self.grid.world_group)
        begin, holdings = time.perf_counter(), self.strategy.params.holdings
        part = take_part(holdings, self.optimizer, NOTHING, keys=claims_of(holdings, None), replica=None)
        self.memory.keep(part, State(self.step_number, self.samples, self.train_s), self.run.layout)
        took_s = time.perf_counter() - begin
        self._remember_after_s = time.monotonic() + max(REMEMBER_EVERY_S, took_s / REMEMBER_SHARE)
        self.ledger.spend("checkpoint", took_s)

    def balance(self) -> None:
        """Re-cut the pipeline, or propose to, if its stages are out of balance; call it right after
        `save`."""
        layout, pipeline = self.run.layout, self.strategy.pipeline
        if pipeline is None or layout.recut == "off":
            return
        busy_by_rank = self.grid.world_group.all_gather_json(pipeline.take_busy())
        seconds = [max(busy.get(str(n), 0.0) for busy in busy_by_rank) for n in range(layout.stage_count)]
        better = propose_recut(self.strategy.cut, self.run.network, layout, seconds)
        if better is None:
            return
        stages = [piece.until - piece.first for piece in better.pieces]
        applied = layout.recut == "apply"
        self.record.emit("recut", step=self.step_number, seconds=seconds, stages=stages, applied=applied)
        if applied:
            self._assemble(better)
            self.restore()

    @property
    def own_sequences(self) -> int:
        """Number of sequences of a batch that this process computes."""
        return sum(len(self.feed.positions(0, part)) for part in self.feed.parts)

    def pause(self) -> None:
        """Report that the run is paused."""
        self._watch(self, "paused")

    @property
    def _own_replica(self) -> int | None:
        """Index of this replica if replicas train locally between syncs; None if all are equal."""
        return self.grid.at["dp"] if self.sync.local and self.run.layout.dp > 1 else None

    @property
    def _num_targets(self) -> int:
        """Number of targets that the loss is divided by: over all replicas whose gradients are summed."""
        layout = self.run.layout
        return self.feed.num_targets(of_replicas=layout.sharded if self.sync.local else layout.replicas)

    def _add_up(self, known: Tensor) -> Tensor:
        """Sum the partial losses of all processes; those along tp are equal."""
        if self.run.layout.world > 1:
            known = known / self.run.layout.tp
            dist.all_reduce(known)
        return known

    def _agree(
        self, loss: Tensor, norm: float, rate: float, begin: float, *, stop: bool, drain: bool
    ) -> StepResult:
        """All-reduce loss, time, sample digest and requests of this step over all ranks."""
        layout, sync, step, first = (
            self.run.layout,
            self.sync,
            self.step_number + 1,
            self.grid.world_group.rank == 0,
        )
        agreed = self.replicas.at_sync_point(step) or (
            not self.replicas.has_sync_points and step % sync.every == 0
        )
        seconds = time.perf_counter() - begin + self._update_s
        report = RankReport(
            loss=float(loss) / layout.tp,
            train_s=self.train_s + seconds,
            digest=self._read_digest if agreed and self._reads else 0,
            stop=stop,
            drain=drain,
            request=newest_request(self.folder) if first else 0,
            written=self.checkpoints.written,
            due=first and self.checkpoints.due(),
            memory_save_due=first and self._memory_save_due,
        )
        row = torch.tensor(report.numbers(), dtype=torch.float64)
        group = None if agreed else self._near
        if layout.world > 1 and (agreed or group is not None):
            dist.all_reduce(row, group=group)
        found = reduced(row.tolist(), agreed=agreed)
        self.train_s = found.train_s
        # Replicas that train locally each have the mean over their own samples.
        mean = found.loss / (layout.dp if agreed and sync.local else 1)
        return replace(found.facts, loss=mean, gradient_norm=norm, rate=rate, seconds=seconds)

    @property
    def _memory_save_due(self) -> bool:
        """True if it is time to copy the state to peer memory: this layout has no redundancy."""
        alone = not undivided(self.run.layout) and self.generation > 0
        return alone and time.monotonic() >= self._remember_after_s

    @property
    def _reads(self) -> bool:
        """True if this process reports the samples of its replica."""
        return self.grid.at["pp"] == self.grid.at["cp"] == self.grid.at["tp"] == 0
