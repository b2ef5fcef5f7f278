"""A training run of an n-gram model: its steps are the stages of a build.

Input: a run's directory with its run.json. Output: a journal and, at the end, a model. A run that was stopped
or killed at any moment resumes from the committed stages and ends with the same bits. torch is not loaded
before counting is over, to leave its memory to the counting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.ngram.files import load, replace_ngrams, save_model
from windlass.models.ngram.model import NgramModel
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.protocol.progress import Progress
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import RUN_FILE, Run
from windlass.spec.shape import NgramShape, Shape
from windlass.store.beam import BeamRunner, check_beam, flag_of
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.event_log import EventLog
from windlass.train.ngram.blocks import Packing
from windlass.train.ngram.build import STAGES, Build
from windlass.train.ngram.estimate import Estimates
from windlass.train.ngram.executor import CountExecutor, process_pool_executor
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import CorpusSource

if TYPE_CHECKING:
    from windlass.train.evaluate import Evaluation
    from windlass.train.result import SpecialTokens

FOLDER = "counting"
"""In the run's directory, until the run is over: the committed stages."""
DRAFT = "draft"
"""In that: the model before its evaluation."""
REPORT_EVERY_S = 0.2
SAMPLE_TOKENS = 48


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Start or resume a run. Return True if it finished, False if it was stopped."""
    run = Run.model_validate_json(StoreDir(folder).read(RUN_FILE))
    if (member or RankInfo()).world != 1:
        raise BadInput("n-grams are counted by one worker, on as many cores as [machine] threads says")
    record = EventLog(folder)
    try:
        return CountRun(run, folder, record, stopped).run_loop()
    finally:
        record.close()


class CountRun:
    """One run."""

    def __init__(self, run: Run, folder: Path, record: EventLog, stopped: Callable[[], bool]) -> None:
        assert isinstance(run.shape, NgramShape)
        self.run, self.shape, self.folder, self.record = run, run.shape, folder, record
        self.corpus = load_corpus(Path(run.corpus))
        if self.corpus.digest != run.corpus_digest:
            raise Damaged(f"{run.corpus} is not the corpus that this run was planned for")
        self.build = Build(
            CorpusSource(Path(run.corpus)), self._settings(), folder / FOLDER, self._report, stopped,
            executor=self._executor(),
        )  # fmt: skip
        self._reported_at, self._began, self._stage_began = 0.0, time.perf_counter(), time.perf_counter()
        self._stage = 0

    def run_loop(self) -> bool:
        self._emit_start()
        estimates = self.build.run(self._emit_stage)
        if estimates is None:
            self.record.emit("stopped", step=self._stage, steps=len(STAGES))
            return False
        for note in estimates.notes:
            self.record.emit("warning", message=note)
        self._finish(estimates)
        return True

    def _settings(self) -> CountSettings:
        config, tokenizer = self.run.job.model.ngram, self.corpus.tokenizer
        packing = Packing(config.order, tokenizer.vocabulary, tokenizer.end_id)
        return CountSettings(packing, config.thresholds, config.memory, self.run.threads)

    def _executor(self) -> CountExecutor:
        """Return the executor: this machine's processes, or the Beam runner that the job names."""
        config = self.run.job.model.ngram
        if config.runner == "pool":
            return process_pool_executor
        check_beam(f"[model.ngram] runner = '{config.runner}'")
        from windlass.train.ngram.on_beam import BeamCountExecutor

        flags = tuple(flag_of(option) for option in config.runner_options)
        log = self.folder / "beam.log"
        runner = BeamRunner(config.runner, max(1, self.run.threads), str(log), flags)
        place = config.scratch.rstrip("/") if config.scratch else str(self.folder / FOLDER)
        return BeamCountExecutor(runner, f"{place}/beam-{self.folder.parent.name}-{self.folder.name}")

    def _finish(self, estimates: Estimates) -> None:
        """Write the model once, evaluate it from the file, and register it only after the evaluation."""
        from windlass.train.result import save_directory

        shape = replace_ngrams(self.shape, estimates.ngrams(self.shape.order))
        draft = self.folder / FOLDER / DRAFT
        writer = DirectoryWriter(StoreDir(draft))
        tokens = {"eos_token_id": self.corpus.tokenizer.end_id, "pad_token_id": self.corpus.tokenizer.pad_id}
        save_model(writer, shape, estimates.promises(), special_tokens=tokens)
        writer.commit()
        model = load(draft)
        result = self._evaluate(model)
        self._show(model)

        def write(target: DirectoryWriter, special_tokens: SpecialTokens) -> Shape:
            assert dict(special_tokens) == tokens
            for name, known in writer.records.items():
                if not target.link(name, draft / name, known):
                    target.write(name, (draft / name).read_bytes())
            return shape

        path = save_directory(self.folder, self.run, write, self.corpus, result)
        self.build.clear()
        self._emit_finish(path)

    def _evaluate(self, model: NgramModel) -> Evaluation:
        import torch
        from torch import Tensor

        from windlass.train.evaluate import evaluate
        from windlass.train.objective import Causal

        def batch_loss(batch: tuple[Tensor, Tensor]) -> Tensor:
            return torch.tensor(-model.logprobs(*(ids.numpy() for ids in batch)).sum())

        context, held_out = self.shape.context, self.corpus.validation
        result = evaluate(batch_loss, held_out, Causal(), context=context, report=self._report)
        self.record.emit("evaluation", step=len(STAGES), **asdict(result))
        self.record.plot(
            len(STAGES), validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def _show(self, model: NgramModel) -> None:
        """Log samples of the model."""
        tokenizer, random = self.corpus.tokenizer, np.random.default_rng(self.run.job.seed)
        for prompt in self.run.job.train.sample_prompts or ("",):
            state = model.read(model.first(), np.array([model.end, *tokenizer.encode(prompt)], np.int32))[-1:]
            written: list[int] = []
            for _ in range(SAMPLE_TOKENS):
                chances = np.exp(model.scores(state)[0].astype(np.float64))
                written.append(int(random.choice(len(chances), p=chances / chances.sum())))
                state = model.step(state, np.array(written[-1:]))
            text = prompt + tokenizer.decode(written)
            self.record.emit("sample", step=len(STAGES), text=text)
            self.record.plot_text(len(STAGES), "sample", text)

    def _emit_start(self) -> None:
        self.record.emit(
            "started",
            parameters=self.shape.parameters,
            steps=len(STAGES),
            device="cpu",
            threads=self.build.settings.workers,
            compile=False,
            layout=str(self.run.layout),
            workers=1,
        )

    def _emit_stage(self, stage: int) -> None:
        """Write a finished stage to the journal only; the display shows progress events."""
        now = time.perf_counter()
        seconds, self._stage_began, self._stage = now - self._stage_began, now, stage
        self.record.emit(
            "step",
            quiet=True,
            step=stage,
            steps=len(STAGES),
            stage=STAGES[stage - 1],
            seconds=round(seconds, 3),
            tokens_per_s=round(self.corpus.train.tokens / max(seconds, 1e-9), 1),
        )

    def _emit_finish(self, path: Path) -> None:
        seconds = round(time.perf_counter() - self._began, 2)
        self.record.emit("finished", step=len(STAGES), train_s=seconds, model=str(path), durable=True)

    def _report(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S or progress.done == progress.total:
            self._reported_at = now
            self.record.emit_progress(progress)
