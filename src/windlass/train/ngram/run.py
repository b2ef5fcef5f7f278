"""A training run of an n-gram model: its steps are the stages of a build.

Input: a run's directory with its run.json. Output: a journal and, at the end, a model. Stopped or killed
at any moment and started again, it goes on with what was committed and ends with the same bits. torch is
not loaded before the counting is over: it would take memory that is better counted in.
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
from windlass.train.ngram.executor import CountExecutor, pool_hands
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import CorpusSource

if TYPE_CHECKING:
    from windlass.train.evaluate import Evaluation
    from windlass.train.result import SpecialTokens

FOLDER = "counting"
"""In the run's directory, while it lasts: what is committed of the stages."""
DRAFT = "draft"
"""In that: the model before it is known how good it is."""
TELL_EVERY_S = 0.2
SAMPLE_TOKENS = 48


def train(folder: Path, stopped: Callable[[], bool], member: RankInfo | None = None) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run = Run.model_validate_json(StoreDir(folder).read(RUN_FILE))
    if (member or RankInfo()).world != 1:
        raise BadInput("n-grams are counted by one worker, on as many cores as [machine] threads says")
    record = EventLog(folder)
    try:
        return CountRun(run, folder, record, stopped).go_on()
    finally:
        record.close()


class CountRun:
    """One run."""

    def __init__(self, run: Run, folder: Path, record: EventLog, stopped: Callable[[], bool]) -> None:
        assert isinstance(run.shape, NgramShape)
        self.run, self.shape, self.folder, self.record = run, run.shape, folder, record
        self.corpus = load_corpus(Path(run.corpus))
        if self.corpus.digest != run.corpus_digest:
            raise Damaged(f"{run.corpus}: is not the corpus that this run was planned for")
        self.build = Build(
            CorpusSource(Path(run.corpus)), self._settings(), folder / FOLDER, self._report, stopped,
            hands=self._hands(),
        )  # fmt: skip
        self._told_at, self._began, self._stage_began = 0.0, time.perf_counter(), time.perf_counter()
        self._stage = 0

    def go_on(self) -> bool:
        self._tell_start()
        estimates = self.build.run(self._tell_stage)
        if estimates is None:
            self.record.tell("stopped", step=self._stage, steps=len(STAGES))
            return False
        for note in estimates.notes:
            self.record.tell("warning", message=note)
        self._finish(estimates)
        return True

    def _settings(self) -> CountSettings:
        asked, tokenizer = self.run.job.model.ngram, self.corpus.tokenizer
        packing = Packing(asked.order, tokenizer.vocabulary, tokenizer.end_id)
        return CountSettings(packing, asked.thresholds, asked.memory, self.run.threads)

    def _hands(self) -> CountExecutor:
        """Count here, or with the runner of Beam that the job names."""
        asked = self.run.job.model.ngram
        if asked.runner == "pool":
            return pool_hands
        check_beam(f"[model.ngram] runner = '{asked.runner}'")
        from windlass.train.ngram.on_beam import BeamCountExecutor

        flags = tuple(flag_of(option) for option in asked.runner_options)
        log = self.folder / "beam.log"
        runner = BeamRunner(asked.runner, max(1, self.run.threads), str(log), flags)
        place = asked.scratch.rstrip("/") if asked.scratch else str(self.folder / FOLDER)
        return BeamCountExecutor(runner, f"{place}/beam-{self.folder.parent.name}-{self.folder.name}")

    def _finish(self, estimates: Estimates) -> None:
        """Write the model once, measure it from the file, and register nothing that was not measured."""
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
        self._tell_finish(path)

    def _evaluate(self, model: NgramModel) -> Evaluation:
        import torch
        from torch import Tensor

        from windlass.train.evaluate import evaluate
        from windlass.train.objective import Causal

        def look(batch: tuple[Tensor, Tensor]) -> Tensor:
            return torch.tensor(-model.logprobs(*(ids.numpy() for ids in batch)).sum())

        context, held_out = self.shape.context, self.corpus.validation
        result = evaluate(look, held_out, Causal(), context=context, report=self._report)
        self.record.tell("evaluation", step=len(STAGES), **asdict(result))
        self.record.plot(
            len(STAGES), validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte
        )
        return result

    def _show(self, model: NgramModel) -> None:
        """Show what the model would write."""
        tokenizer, random = self.corpus.tokenizer, np.random.default_rng(self.run.job.seed)
        for prompt in self.run.job.train.sample_prompts or ("",):
            state = model.read(model.first(), np.array([model.end, *tokenizer.encode(prompt)], np.int32))[-1:]
            written: list[int] = []
            for _ in range(SAMPLE_TOKENS):
                chances = np.exp(model.scores(state)[0].astype(np.float64))
                written.append(int(random.choice(len(chances), p=chances / chances.sum())))
                state = model.step(state, np.array(written[-1:]))
            text = prompt + tokenizer.decode(written)
            self.record.tell("sample", step=len(STAGES), text=text)
            self.record.plot_text(len(STAGES), "sample", text)

    def _tell_start(self) -> None:
        self.record.tell(
            "started",
            parameters=self.shape.parameters,
            steps=len(STAGES),
            device="cpu",
            threads=self.build.settings.workers,
            compile=False,
            layout=str(self.run.layout),
            workers=1,
        )

    def _tell_stage(self, stage: int) -> None:
        """Write down that a stage is done; what is shown meanwhile is how far it is."""
        now = time.perf_counter()
        seconds, self._stage_began, self._stage = now - self._stage_began, now, stage
        self.record.tell(
            "step",
            quiet=True,
            step=stage,
            steps=len(STAGES),
            stage=STAGES[stage - 1],
            seconds=round(seconds, 3),
            tokens_per_s=round(self.corpus.train.tokens / max(seconds, 1e-9), 1),
        )

    def _tell_finish(self, path: Path) -> None:
        seconds = round(time.perf_counter() - self._began, 2)
        self.record.tell("finished", step=len(STAGES), train_s=seconds, model=str(path), durable=True)

    def _report(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S or progress.done == progress.total:
            self._told_at = now
            self.record.tell_progress(progress)
