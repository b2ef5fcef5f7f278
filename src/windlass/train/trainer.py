"""A run in memory: the model, its optimizer, its data, and how far they have come.

Input: a Run. `step` advances the weights once; `evaluate`, `sample` and `save` do what their names say
and tell the record. Nothing here decides when: that is loop.py.
"""

from __future__ import annotations

import math
import time
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
from windlass.spec.errors import BadInput
from windlass.spec.progress import Progress
from windlass.spec.run import CHECKPOINTS, Run
from windlass.train.checkpoint import State, restore_newest, save_checkpoint
from windlass.train.compiled import build_loss
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.objective import Causal, Example, Masked, Objective
from windlass.train.optimize import build_optimizer, rate_of, set_rate
from windlass.train.record import Record
from windlass.train.sample import continue_tokens

SAMPLE_TOKENS = 48


@dataclass(frozen=True)
class StepFacts:
    """What one step did."""

    loss: float
    gradient_norm: float
    rate: float
    seconds: float


class Trainer:
    """Everything that a run changes."""

    def __init__(self, run: Run, folder: Path, record: Record) -> None:
        self.run, self.folder, self.record = run, folder, record
        self.device = place_process(run.job.machine, run.threads)
        self.corpus = load_corpus(Path(run.corpus))
        self.objective = build_objective(run, self.corpus)
        self.model = initial_model(run, self.device)
        self.loss = build_loss(self.model, record, compile_it=run.compile)
        self.optimizer = build_optimizer(self.model, run)
        self.step_number, self.train_s = 0, 0.0

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        state, passed_over = restore_newest(self.folder / CHECKPOINTS, self.model, self.optimizer)
        for reason in passed_over:
            self.record.tell("warning", message=f"checkpoint passed over: {reason}")
        if state is not None:
            self.step_number, self.train_s = state.step, state.train_s
            self.record.tell("resumed", step=self.step_number)

    def step(self) -> StepFacts:
        """Advance the weights once."""
        begin = time.perf_counter()
        rate = rate_of(self.run, self.step_number)
        set_rate(self.optimizer, rate)
        loss = self._accumulate(self._examples())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.job.train.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_number += 1
        seconds = time.perf_counter() - begin
        self.train_s += seconds
        return StepFacts(loss, float(norm), rate, seconds)

    def evaluate(self, sequences: int | None) -> Evaluation:
        """Measure on held-out text."""
        result = evaluate(
            self.model,
            self.corpus.validation,
            self.objective,
            context=self.run.shape.context,
            sequences=sequences,
            report=self._tell_progress,
        )
        self.record.tell("evaluation", step=self.step_number, **asdict(result))
        self.record.plot(
            self.step_number, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def sample(self) -> None:
        """Show what the model would write."""
        if not self.model.causal:
            return
        tokenizer, seed = self.corpus.tokenizer, self.run.job.seed
        for prompt in self.run.job.train.sample_prompts or ("",):
            start = tokenizer.encode(prompt)
            ids = continue_tokens(self.model, start, SAMPLE_TOKENS, seed=seed, end=tokenizer.end_id)
            text = prompt + tokenizer.decode(ids)
            self.record.tell("sample", step=self.step_number, text=text)
            self.record.plot_text(self.step_number, "sample", text)

    def save(self) -> None:
        """Write a checkpoint."""
        begin = time.perf_counter()
        samples = self.step_number * self.run.batch_sequences
        state = State(self.step_number, samples, self.train_s)
        keep = self.run.job.train.checkpoint_keep
        save_checkpoint(self.folder / CHECKPOINTS, self.model, self.optimizer, state, keep=keep)
        seconds = round(time.perf_counter() - begin, 3)
        self.record.tell("checkpoint", step=self.step_number, seconds=seconds, sync=True)

    def _examples(self) -> list[Example]:
        """Read the samples of this step, cut into micro-batches."""
        run, micro = self.run, self.run.micro_batch_sequences
        positions = positions_of(run, self.step_number)
        tokens = read_batch(self.corpus.train, positions, context=run.shape.context, seed=run.job.seed)
        starts = range(0, len(positions), micro)
        return [self.objective.examples(tokens[i : i + micro], positions[i : i + micro]) for i in starts]

    def _accumulate(self, examples: list[Example]) -> float:
        """Sum gradients over micro-batches, so that they equal those of the whole batch at once."""
        asked = sum(example.asked for example in examples)
        narrow = self.run.job.machine.precision == "bfloat16"
        total = 0.0
        for example in examples:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=narrow):
                summed = self.loss(example.inputs_BT.to(self.device), example.targets_BT.to(self.device))
                loss = summed / asked
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def _tell_progress(self, p: Progress) -> None:
        self.record.tell("progress", keep=False, stage=p.stage, done=p.done, total=p.total, unit=p.unit)


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
