"""The training loop: batch, loss, update; now and then evaluate, sample, save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model.
Stopped at any moment and started again, it ends with the same bits as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from windlass.corpus.batches import read_batch
from windlass.corpus.built import BuiltCorpus, load_corpus
from windlass.models.build import build
from windlass.models.huggingface import load_model
from windlass.models.language import LanguageModel
from windlass.parallel.device import place_process
from windlass.spec.errors import BadInput, StoreFailed, WindlassError
from windlass.spec.progress import Progress
from windlass.spec.run import CHECKPOINTS, RUN_FILE, Run
from windlass.store.place import Place
from windlass.train.checkpoint import State, restore_newest, save_checkpoint
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.objective import Causal, Masked, Objective, summed_loss
from windlass.train.optimize import build_optimizer, rate_of, set_rate
from windlass.train.peak import peak_flops
from windlass.train.record import Record
from windlass.train.replan import replanned
from windlass.train.result import save_result
from windlass.train.sample import continue_tokens

SAMPLE_TOKENS = 48
SMOOTHING = 0.9


@dataclass(frozen=True)
class StepFacts:
    """What one step did."""

    loss: float
    gradient_norm: float
    rate: float
    seconds: float


class Trainer:
    """A run in memory: the model, its optimizer, its data, and how far they have come."""

    def __init__(self, run: Run, folder: Path, record: Record) -> None:
        self.run, self.folder, self.record = run, folder, record
        self.device = place_process(run.job.machine, run.threads)
        self.corpus = load_corpus(Path(run.corpus))
        self.objective = build_objective(run, self.corpus)
        self.model = initial_model(run, self.device)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = compiled(self.model, run, record)
        self.optimizer = build_optimizer(self.model, run)
        self.step, self.train_s = 0, 0.0
        self.evaluated: tuple[int, Evaluation] | None = None

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        state, passed_over = restore_newest(self.folder / CHECKPOINTS, self.model, self.optimizer)
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        if state is not None:
            self.step, self.train_s = state.step, state.train_s
            self.record.tell("resumed", step=self.step)

    def train_step(self) -> StepFacts:
        """Advance the weights once."""
        begin = time.perf_counter()
        rate = rate_of(self.run, self.step)
        set_rate(self.optimizer, rate)
        loss = self._accumulate(positions_of(self.run, self.step))
        clip = self.run.job.train.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        seconds = time.perf_counter() - begin
        self.train_s += seconds
        return StepFacts(loss, float(norm), rate, seconds)

    def _accumulate(self, positions: NDArray[np.int64]) -> float:
        """Sum gradients over micro-batches, so that they equal those of the whole batch at once."""
        run, part = self.run, self.corpus.train
        tokens = read_batch(part, positions, context=run.shape.context, seed=run.job.seed)
        micro = run.micro_batch_sequences
        examples = [
            self.objective.examples(tokens[i : i + micro], positions[i : i + micro])
            for i in range(0, len(positions), micro)
        ]
        asked = sum(example.asked for example in examples)
        total = 0.0
        for example in examples:
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=run.job.machine.precision == "bfloat16"
            ):
                x_BTD = self.forward(example.inputs_BT.to(self.device))
                loss = summed_loss(self.model, x_BTD, example.targets_BT.to(self.device)) / asked
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def evaluate(self, sequences: int | None) -> Evaluation:
        """Measure on held-out text, and tell."""
        result = evaluate(
            self.model,
            self.corpus.validation,
            self.objective,
            context=self.run.shape.context,
            sequences=sequences,
            report=lambda p: self._tell_progress(p),
        )
        self.evaluated = (self.step, result)
        self.record.tell("evaluation", step=self.step, **asdict(result))
        self.record.plot(
            self.step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def sample(self) -> None:
        """Show what the model would write."""
        if not self.model.causal:
            return
        tokenizer = self.corpus.tokenizer
        for prompt in self.run.job.train.sample_prompts or ("",):
            ids = continue_tokens(
                self.model,
                tokenizer.encode(prompt),
                SAMPLE_TOKENS,
                seed=self.run.job.seed,
                end=tokenizer.end_id,
            )
            text = prompt + tokenizer.decode(ids)
            self.record.tell("sample", step=self.step, text=text)
            self.record.plot_text(self.step, "sample", text)

    def save(self) -> None:
        """Write a checkpoint."""
        state = State(self.step, self.step * self.run.batch_sequences, self.train_s)
        begin = time.perf_counter()
        save_checkpoint(
            self.folder / CHECKPOINTS,
            self.model,
            self.optimizer,
            state,
            keep=self.run.job.train.checkpoint_keep,
        )
        self.record.tell(
            "checkpoint", step=self.step, seconds=round(time.perf_counter() - begin, 3), sync=True
        )

    def _tell_progress(self, p: Progress) -> None:
        self.record.tell("progress", keep=False, stage=p.stage, done=p.done, total=p.total, unit=p.unit)


def train(folder: Path, stopped: Callable[[], bool]) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run = load_run(folder)
    record = Record(folder)
    try:
        trainer = Trainer(run, folder, record)
        record.tell(
            "started",
            parameters=run.shape.parameters,
            steps=run.steps,
            threads=run.threads,
            device=trainer.device.type,
            compile=run.compile,
        )
        trainer.restore()
        finished = _loop(trainer, stopped)
        if finished:
            _finish(trainer)
        return finished
    finally:
        record.close()


def _loop(trainer: Trainer, stopped: Callable[[], bool]) -> bool:
    peak = peak_flops(trainer.device)
    smooth: float | None = None
    told_at = 0.0
    while trainer.step < trainer.run.steps:
        facts = trainer.train_step()
        _check_finite(facts, trainer)
        smooth = facts.seconds if smooth is None else SMOOTHING * smooth + (1 - SMOOTHING) * facts.seconds
        run = trainer.run
        speed = run.tokens_per_step / smooth
        share = speed * run.shape.training_flops_per_token() / peak
        due = trainer.step % run.job.train.log_every == 0 or trainer.step == run.steps
        if due or time.monotonic() - told_at > 0.2:
            told_at = time.monotonic()
            trainer.record.tell(
                "step",
                keep=due,
                step=trainer.step,
                steps=run.steps,
                loss=round(facts.loss, 6),
                rate=facts.rate,
                gradient_norm=round(facts.gradient_norm, 4),
                tokens_per_s=round(speed, 1),
                share_of_peak=round(share, 4),
                seconds_left=round((run.steps - trainer.step) * smooth, 1),
            )
        if due:
            trainer.record.plot(
                trainer.step, train__loss=facts.loss, train__rate=facts.rate, train__tokens_per_s=speed
            )
        _replan(trainer)
        last = trainer.step == trainer.run.steps
        if trainer.step % run.evaluate_every == 0 and not last:
            trainer.evaluate(run.evaluate_sequences)
            trainer.sample()
        if stopped():
            trainer.save()
            trainer.record.tell("stopped", step=trainer.step, steps=run.steps)
            return False
        if trainer.step % run.checkpoint_every == 0 and not last:
            _save_or_warn(trainer)
    return True


def _finish(trainer: Trainer) -> None:
    result = trainer.evaluate(trainer.run.final_sequences)
    trainer.sample()
    trainer.save()
    path = save_result(trainer.folder, trainer.run, trainer.model, trainer.corpus, result)
    trainer.record.tell(
        "finished", step=trainer.step, train_s=round(trainer.train_s, 2), model=str(path), sync=True
    )


def _replan(trainer: Trainer) -> None:
    """With a time budget, correct the number of steps by what the steps really take."""
    run = replanned(trainer.run, trainer.step, trainer.train_s)
    if run is trainer.run:
        return
    trainer.record.tell("replanned", step=trainer.step, steps_before=trainer.run.steps, steps=run.steps)
    trainer.run = run
    save_run(trainer.folder, run)


def _save_or_warn(trainer: Trainer) -> None:
    """A failed save costs a checkpoint, not the run: training goes on and says so."""
    try:
        trainer.save()
    except StoreFailed as failure:
        trainer.record.tell("warning", message=failure.message)


def _check_finite(facts: StepFacts, trainer: Trainer) -> None:
    if math.isfinite(facts.loss) and math.isfinite(facts.gradient_norm):
        return
    raise WindlassError(
        f"step {trainer.step}: the loss is {facts.loss}, its gradient {facts.gradient_norm}",
        hint=f"lower [train] learning_rate (it was {facts.rate:.3g}) or lengthen warmup_steps",
    )


def load_run(folder: Path) -> Run:
    return Run.model_validate_json(Place(folder).read(RUN_FILE))


def save_run(folder: Path, run: Run) -> None:
    Place(folder).write(RUN_FILE, run.model_dump_json(indent=1).encode())


def positions_of(run: Run, step: int) -> NDArray[np.int64]:
    """Return the global positions of the samples of a step: the data's whole state is its number."""
    return np.arange(step * run.batch_sequences, (step + 1) * run.batch_sequences, dtype=np.int64)


def initial_model(run: Run, device: torch.device) -> LanguageModel:
    """Return the model before its first step: fresh from the seed, or from a registered one."""
    if run.start_from is None:
        return build(run.shape, seed=run.job.seed, device=device)
    return load_model(Path(run.start_from), dtype=torch.float32, device=device)


def build_objective(run: Run, corpus: BuiltCorpus) -> Objective:
    if run.objective == "causal":
        return Causal()
    mask = corpus.tokenizer.mask_id
    if mask is None:
        raise BadInput(
            "this tokenizer has no mask token, so nothing can be masked",
            hint="use a tokenizer.json with a [MASK] or <|mask|> token, or another model family",
        )
    return Masked(run.job.seed, run.job.train.mask_share, mask, corpus.tokenizer.vocabulary)


def compiled(model: LanguageModel, run: Run, record: Record) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the forward pass, compiled where the planner found that it pays."""
    if not run.compile:
        return model
    record.tell("progress", keep=False, stage="compile", done=0, total=None, unit="")
    fast = torch.compile(model, fullgraph=True)
    return _falling_back(fast, model, record)


def _falling_back(
    fast: Callable[[torch.Tensor], torch.Tensor], plain: LanguageModel, record: Record
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Use the plain model from the moment that the compiler fails (no C++ compiler, say)."""
    works = True

    def forward(tokens_BT: torch.Tensor) -> torch.Tensor:
        nonlocal works
        if works:
            try:
                return fast(tokens_BT)
            except torch._dynamo.exc.TorchDynamoException as error:
                works = False
                reason = str(error).strip().splitlines()[0]
                record.tell("warning", message=f"torch.compile failed, going on without it: {reason}")
        return plain(tokens_BT)

    return forward
