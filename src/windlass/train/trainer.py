"""A run in memory: the model, its optimizer, its data, and how far they have come.

Input: a Run and which of its processes this is. `step` advances the weights once; `evaluate`, `sample` and
`save` do what their names say and tell the record. All processes call them together. Nothing here decides
when: that is loop.py.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.corpus.built import load_corpus
from windlass.parallel.device import place_process
from windlass.parallel.schedule import propose_recut
from windlass.parallel.strategy import Strategy
from windlass.spec.errors import StoreFailed
from windlass.spec.layout import Cut
from windlass.spec.member import Member
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.settings import Settings
from windlass.train.checkpoint import Saving, State, restore_newest
from windlass.train.compiled import compiled
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.feed import Feed
from windlass.train.optimize import build_optimizer, rate_of, set_rate
from windlass.train.record import Record
from windlass.train.replicas import Replicas
from windlass.train.sample import continue_tokens
from windlass.train.settings import newest_request
from windlass.train.settle import settle_run

SAMPLE_TOKENS = 48
KINDS = ("momentum", "residual")
"""What the exchange between replicas may keep with each weight (train/replicas.py)."""


@dataclass(frozen=True)
class StepFacts:
    """What one step did, and what all processes agreed on after it."""

    loss: float
    gradient_norm: float
    rate: float
    seconds: float
    agreed: bool = True
    """Whether all replicas spoke to each other; only then they may act together."""
    stop: bool = False
    """Whether any process was asked to stop."""
    request: int = 0
    """The newest request for other settings, 0 if there is none."""
    written: bool = False
    """Whether the bytes of a checkpoint that is being saved have been written by all."""


class Trainer:
    """Everything that a run changes, as far as this process holds it."""

    saves_beside = True
    """Whether checkpoints may be written while training goes on."""

    def __init__(self, run: Run, folder: Path, record: Record, member: Member | None = None) -> None:
        self.run, self.folder, self.record = run, folder, record
        member = member or Member()
        self.device = place_process(run.job.machine, len(member.cores) or run.threads, member.rank)
        self.corpus = load_corpus(Path(run.corpus))
        self.step_number, self.samples, self.train_s = 0, 0, 0.0
        self.taken, self.sync = 0, run.job.sync
        self.saving: Saving | None = None
        self._save_began = self._stall_s = 0.0
        self.grid, cut = settle_run(run, folder, self.device)
        self._assemble(cut)

    def _assemble(self, cut: Cut) -> None:
        """Build what depends on the cut."""
        run, at = self.run, self.grid.at
        self.strategy = Strategy(run, self.grid, cut)
        if run.compile and self.strategy.whole and run.layout.sharded == 1:
            self.strategy.forward = compiled(self.strategy.stages[0].model, self.record)
        self.replica = at["dp"] * run.layout.sharded + at["sharded"]
        self.feed = Feed(run, self.corpus, self.replica)
        self.optimizer = build_optimizer(self.strategy.held.holdings, run)
        self.replicas = Replicas(self.strategy.held.holdings, self.grid.group("dp"), self.sync)
        self._near = self.grid.group("pp", "sharded", "cp", "tp")

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        state, extra, passed_over = restore_newest(
            self.folder / CHECKPOINTS,
            self.strategy.held.holdings,
            self.optimizer,
            crew=self.grid.crew,
            extra_kinds=KINDS,
            replica=self._own_replica,
        )
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        if state is not None:
            self.step_number, self.samples, self.train_s = state.step, state.samples, state.train_s
            self.strategy.held.follow()
            self.replicas.load_state(extra, state.step)
            self.record.tell("resumed", step=self.step_number, layout=str(self.run.layout))

    def step(self, *, stop: bool = False) -> StepFacts:
        """Advance the weights once."""
        begin = time.perf_counter()
        rate = rate_of(self.run, self.step_number)
        set_rate(self.optimizer, rate)
        loss = self.strategy.learn(self.feed.batches(self.samples), self._asked)
        held = self.strategy.held
        held.collect()
        self.replicas.after_backward(self.step_number)
        norm = held.clip(self.run.job.train.clip or math.inf)
        self.optimizer.step()
        held.clear()
        self.step_number += 1
        self.samples += self.run.batch_sequences
        self.replicas.after_update(self.step_number, self.train_s + time.perf_counter() - begin)
        held.follow()
        return self._agree(loss, norm, rate, begin, stop=stop)

    def agree(self) -> None:
        """Let all replicas hold equal weights."""
        self.replicas.agree()
        self.strategy.held.follow()

    def take(self, settings: Settings) -> None:
        """Go on with other settings."""
        self.agree()
        self.taken, self.sync = settings.id, settings.sync
        self.replicas.change(settings.sync)
        self.record.tell(
            "settings", step=self.step_number, id=settings.id, sync=settings.sync.model_dump(mode="json")
        )

    def evaluate(self, sequences: int | None) -> Evaluation:
        """Measure on held-out text."""
        self.agree()
        result = evaluate(
            self.strategy.look,
            self.corpus.validation,
            self.feed.objective,
            context=self.run.shape.context,
            sequences=sequences,
            share=(self.replica, self.run.layout.replicas),
            add_up=self._add_up,
            report=self.record.tell_progress,
        )
        self.strategy.rest()
        self.record.tell("evaluation", step=self.step_number, **asdict(result))
        self.record.plot(
            self.step_number, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def sample(self) -> None:
        """Show what the model would write, where each process of a row can compute scores by itself."""
        if self.run.objective != "causal" or not self.strategy.whole:
            return
        tokenizer, run = self.corpus.tokenizer, self.run
        for prompt in run.job.train.sample_prompts or ("",):
            ids = continue_tokens(
                self.strategy.last_scores,
                tokenizer.encode(prompt),
                SAMPLE_TOKENS,
                context=run.shape.context,
                seed=run.job.seed,
                end=tokenizer.end_id,
            )
            text = prompt + tokenizer.decode(ids)
            self.record.tell("sample", step=self.step_number, text=text)
            self.record.plot_text(self.step_number, "sample", text)
        self.strategy.rest()

    def save(self) -> Path:
        """Write a checkpoint and wait for it."""
        self.begin_save(beside=False)
        return self.end_save()

    def begin_save(self, *, beside: bool = True) -> None:
        """Start to write a checkpoint, beside the steps that follow if asked so.

        One that is still under way is finished first; if it fails, this one is the better for it.
        """
        if self.saving is not None:
            try:
                self.end_save()
            except StoreFailed as failure:
                self.record.tell("warning", message=failure.message)
        begin = time.perf_counter()
        self.agree()
        saving = Saving(
            self.folder / CHECKPOINTS,
            State(self.step_number, self.samples, self.train_s),
            keep=self.run.job.train.checkpoint_keep,
            crew=self.grid.crew,
            layout=self.run.layout,
            cut=self.strategy.cut,
        )
        saving.begin(
            self.strategy.held.holdings,
            self.optimizer,
            extra=self.replicas.state(),
            replica=self._own_replica,
            beside=beside,
        )
        self.saving, self._save_began, self._stall_s = saving, begin, time.perf_counter() - begin

    def end_save(self) -> Path:
        """Wait until the checkpoint is written everywhere, and commit it."""
        assert self.saving is not None
        saving, self.saving = self.saving, None
        begin = time.perf_counter()
        path = saving.end()
        now = time.perf_counter()
        self.record.tell(
            "checkpoint",
            step=saving.step,
            seconds=round(now - self._save_began, 3),
            stall_s=round(self._stall_s + now - begin, 3),
            durable=True,
        )
        return path

    def balance(self) -> None:
        """Look whether the stages of a pipeline have drifted apart; to be called right after `save`."""
        layout, pipeline = self.run.layout, self.strategy.pipeline
        if pipeline is None or layout.recut == "off":
            return
        told = self.grid.crew.share(pipeline.take_busy())
        seconds = [max(busy.get(str(n), 0.0) for busy in told) for n in range(layout.stage_count)]
        better = propose_recut(self.strategy.cut, self.run.shape, layout, seconds)
        if better is None:
            return
        stages = [piece.until - piece.first for piece in better.pieces]
        applied = layout.recut == "apply"
        self.record.tell("recut", step=self.step_number, seconds=seconds, stages=stages, applied=applied)
        if applied:
            self._assemble(better)
            self.restore()

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

    def _agree(self, loss: Tensor, norm: float, rate: float, begin: float, *, stop: bool) -> StepFacts:
        """Let everybody know the loss, the time, and what was asked of any process meanwhile."""
        layout, sync = self.run.layout, self.sync
        agreed = self.replicas.at_border(self.step_number) or (
            not self.replicas.has_borders and self.step_number % sync.every == 0
        )
        request = newest_request(self.folder) if self.grid.crew.rank == 0 else 0
        seconds = time.perf_counter() - begin
        told = torch.tensor(
            [
                float(loss) / layout.tp,
                float(stop),
                self.train_s + seconds,
                float(request),
                float(self.saving is not None and self.saving.written),
                1.0,
            ],
            dtype=torch.float64,
        )
        group = None if agreed else self._near
        if layout.world > 1 and (agreed or group is not None):
            dist.all_reduce(told, group=group)
        summed, stops, train_s, request_id, written, members = told.tolist()
        # Replicas that walk apart each know the mean over their own samples.
        replicas = layout.dp if agreed and sync.local else 1
        self.train_s = train_s / members
        return StepFacts(
            summed / replicas,
            norm,
            rate,
            seconds,
            agreed,
            stop=agreed and stops > 0,
            request=int(request_id),
            written=agreed and written == members,
        )
