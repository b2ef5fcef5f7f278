"""Events, evaluations and the final model of a hidden Markov run."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.corpus.shards import TokenPart
from windlass.models.hmm.model import HiddenMarkov
from windlass.models.hmm.weights import HmmWeights, write_model
from windlass.parallel.device import place_process
from windlass.spec.job import MachineSpec
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.spec.run import Run
from windlass.spec.shape import HmmShape, Shape
from windlass.store.manifest import DirectoryWriter
from windlass.train.evaluate import Evaluation, evaluate
from windlass.train.event_log import EventLog
from windlass.train.hmm.checkpoints import Progressed
from windlass.train.hmm.convergence import Ascent
from windlass.train.hmm.initial import initial_weights
from windlass.train.hmm.text import text_of_corpus
from windlass.train.machine_flops import known_peak
from windlass.train.objective import Causal
from windlass.train.result import SpecialTokens, save_directory

REPORT_EVERY_S = 0.2
SAMPLE_TOKENS = 48


class HmmReport:
    """The text, the journal and the result of one run."""

    def __init__(self, run: Run, folder: Path, record: EventLog, threads: int) -> None:
        assert isinstance(run.shape, HmmShape)
        self.shape, self._run, self._folder, self._record = run.shape, run, folder, record
        self.threads = threads
        self.corpus = load_corpus(Path(run.corpus))
        self.text = text_of_corpus(self.corpus, run.shape.context)
        self._reported_at = 0.0

    def first(self) -> HmmWeights:
        """Return the initial probabilities."""
        job = self._run.job
        place_process(MachineSpec(device="cpu"), threads=1)  # several threads would round differently
        self._record.emit_progress(Progress("initial", 0, 1, "points"))
        found = initial_weights(job.model.hmm, self.text, self.shape.vocabulary, job.seed)
        self._record.emit_progress(Progress("initial", 1, 1, "points"))
        return found

    def evaluate(self, weights: HmmWeights, step: int, sequences: int | None) -> Evaluation:
        """Evaluate on held-out text, and log samples."""
        model = HiddenMarkov(self.shape, weights)
        result = evaluate_hmm(model, self.corpus.validation, sequences, self.report)
        self._record.emit("evaluation", step=step, **asdict(result))
        self._record.plot(step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte)
        self._show(model, step)
        return result

    def export(self, weights: HmmWeights, state: Progressed, result: Evaluation, **more: Any) -> None:
        """Write the model and log `finished`."""

        def write(writer: DirectoryWriter, special_tokens: SpecialTokens) -> Shape:
            write_model(writer, self.shape, weights.astype(np.float32), special_tokens)
            return self.shape

        done = self._run.model_copy(update={"steps": state.step})
        path = save_directory(self._folder, done, write, self.corpus, result)
        facts = {"step": state.step, "train_s": round(state.train_s, 2), "model": str(path), **more}
        self._record.emit("finished", durable=True, **facts)

    def emit_start(self, workers: int, **more: Any) -> None:
        self._record.emit(
            "started",
            parameters=self.shape.parameters,
            steps=self._run.steps,
            device="cpu",
            threads=self.threads,
            compile=False,
            layout=str(self._run.layout),
            workers=workers,
            **more,
        )

    def emit_step(
        self, run: Run, ascent: Ascent, loss: float, seconds: float, workers: int, **more: Any
    ) -> None:
        """`loss` is that of the probabilities before this iteration."""
        step, speed = ascent.state.step, self.text.tokens / seconds
        peak = known_peak(torch.device("cpu")) * self.threads * workers
        self._record.emit(
            "step",
            step=step,
            steps=run.steps,
            loss=round(loss, 9),
            gain=ascent.gain,
            seconds=round(seconds, 3),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * 6.0 * self.shape.states**2 / peak, 4),
            seconds_left=round((run.steps - step) * seconds, 1),
            **more,
        )
        self._record.plot(step, train__loss=loss, train__tokens_per_s=speed)

    def emit_end(self, ascent: Ascent, impossible: int) -> None:
        """Warn about impossible sequences, and log `converged` if this was the last iteration."""
        if impossible:
            self._record.emit("warning", message=_impossible(impossible, self.text.count))
        if ascent.reason is not None:
            self._record.emit("converged", step=ascent.state.step, gain=ascent.gain, reason=ascent.reason)

    def report(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._record.emit_progress(progress)

    def _show(self, model: HiddenMarkov, step: int) -> None:
        job, tokenizer = self._run.job, self.corpus.tokenizer
        random = np.random.default_rng((job.seed, step))
        for prompt in job.train.sample_prompts or ("",):
            ids = np.array(tokenizer.encode(prompt), np.int64)
            state_S = model.read(model.first(), ids)[-1] if len(ids) else None
            tokens_T, _ = model.sample(SAMPLE_TOKENS, random, state_S)
            text = prompt + tokenizer.decode(tokens_T.tolist())
            self._record.emit("sample", step=step, text=text)
            self._record.plot_text(step, "sample", text)


def evaluate_hmm(
    model: HiddenMarkov, part: TokenPart, sequences: int | None, report: Report = silent
) -> Evaluation:
    """Evaluate on the first `sequences` windows of a part (default: all), with the code used for every
    family."""

    def batch_loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tensor(-model.logprobs(*(ids.numpy() for ids in batch)).sum())

    return evaluate(
        batch_loss, part, Causal(), context=model.shape.context, sequences=sequences, report=report
    )


def _impossible(count: int, total: int) -> str:
    return f"{count} of {total} sequences have probability 0 under the model; raise [model.hmm] smoothing"
