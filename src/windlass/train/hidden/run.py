"""A run of Baum and Welch: when to iterate, tell, evaluate and save.

Input: a run's directory with its run.json. Output: checkpoints, a journal and, at the end, a model. A step is
one iteration over the whole training text, cut into sequences of [model] context tokens. Every process of the
run expects a part of it (sweep.py); their counts are added up exactly, and each computes the same next
probabilities from them. Stopped at any moment and started again, with any number of processes, it ends with
the same bits as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from windlass.corpus.built import load_corpus
from windlass.models.hmm.model import HiddenMarkov
from windlass.models.hmm.weights import Weights, write_model
from windlass.parallel.crew import Alone, Crew, Together
from windlass.parallel.device import place_process
from windlass.parallel.grid import meeting
from windlass.spec.errors import BadInput, StoreFailed
from windlass.spec.job import Machine
from windlass.spec.member import Member
from windlass.spec.progress import Progress
from windlass.spec.run import Run
from windlass.spec.shape import HmmShape, Shape
from windlass.store.manifest import DirectoryWriter
from windlass.train.accord import accord
from windlass.train.evaluate import Evaluation
from windlass.train.hidden.evaluation import evaluate_model
from windlass.train.hidden.initial import initial_weights
from windlass.train.hidden.maximise import log_prior, maximise
from windlass.train.hidden.requests import Requests
from windlass.train.hidden.saves import Progressed, Saves
from windlass.train.hidden.sweep import sweep
from windlass.train.hidden.tally import Tally
from windlass.train.hidden.text import text_of_corpus
from windlass.train.loop import load_run
from windlass.train.peak import known_peak
from windlass.train.record import Record
from windlass.train.result import SpecialTokens, save_directory

KINDS = {"float32": torch.float32, "float64": torch.float64}
TELL_EVERY_S = 0.2
SAMPLE_TOKENS = 48


def train(folder: Path, stopped: Callable[[], bool], member: Member | None = None) -> bool:
    """Do a whole run, or go on with it. Return whether it came to its end."""
    run, member = load_run(folder), member or Member()
    if member.world != run.layout.world:
        raise BadInput(f"layout {run.layout} needs {run.layout.world} processes, not {member.world}")
    if run.job.machine.device == "cuda":
        raise BadInput(
            "[machine] device = 'cuda': hidden Markov models are trained on CPUs", hint="leave it out"
        )
    # One thread for each product, so that its bits do not depend on how many there are: blocks have threads.
    device = place_process(Machine(device="cpu"), threads=1)
    record = Record(folder, rank=member.rank)
    try:
        with meeting(member, device):
            climb = Climb(run, folder, record, member)
            climb.begin()
            return climb.go_on(stopped)
    finally:
        record.close()


class Climb:
    """One process's part of a run."""

    def __init__(self, run: Run, folder: Path, record: Record, member: Member) -> None:
        assert isinstance(run.shape, HmmShape)
        self.run, self.shape, self.folder, self.record = run, run.shape, folder, record
        self.crew: Crew = Together() if member.world > 1 else Alone()
        self.threads = len(member.cores) or run.threads
        self.corpus = load_corpus(Path(run.corpus))
        self.text = text_of_corpus(self.corpus, run.shape.context)
        self.saves = Saves(folder, run.job, record)
        self.requests = Requests(folder, run, self.crew, record)
        self.state = Progressed(0)
        self._told_at = 0.0

    def begin(self) -> None:
        """Come to the newest checkpoint or, where there is none, to the first probabilities."""
        self._tell_start()
        found: tuple[Weights, Progressed] | None = None
        with accord(self.crew, f"{self.folder}: the run could not begin"):
            if self.crew.rank == 0:
                found = self.saves.newest() or (self._first(), Progressed(0))
        told = self.crew.share(asdict(found[1]) if found else None)[0]
        self.state = Progressed(**told)
        self.weights = self._agreed(found[0] if found else None)
        if self.state.step:
            self.record.tell(
                "resumed", step=self.state.step, layout=str(self.run.layout), source="checkpoint"
            )

    def go_on(self, stopped: Callable[[], bool]) -> bool:
        """Iterate until the run is over or anybody is asked to stop."""
        while not self._over:
            self.run, stop = self.requests.heed(self.state.step, stopped)
            if self._over:  # fewer iterations were asked for
                break
            if stop or not self._iterate(stopped):
                self._save()
                self.record.tell("stopped", step=self.state.step, steps=self.run.steps)
                self.saves.close()
                return False
            if not self._over:
                self._look_and_save()
        self._finish()
        self.saves.close()
        return True

    @property
    def _over(self) -> bool:
        return self.state.converged or self.state.step >= self.run.steps

    def _look_and_save(self) -> None:
        if self.state.step % self.run.evaluate_every == 0:
            self._evaluate(self.run.evaluate_sequences)
        if self.state.step % self.run.checkpoint_every == 0:
            self._save_if_possible()

    def _iterate(self, stopped: Callable[[], bool]) -> bool:
        """Do one iteration; return False, with nothing changed, when somebody was asked to stop."""
        began, run = time.perf_counter(), self.run
        kind = KINDS[run.job.model.hmm.precision]
        share = (self.crew.rank, self.crew.world)
        tally = sweep(
            self.weights, self.text, threads=self.threads, share=share, dtype=kind, report=self._report,
            stopped=stopped,
        )  # fmt: skip
        if any(self.crew.share(tally is None)):
            return False
        assert tally is not None
        self._climb(tally, began)
        return True

    def _climb(self, tally: Tally, began: float) -> None:
        """Take the next probabilities from what all processes expect."""
        if self.crew.world > 1:
            tally.gather()
        counts, asked = tally.counts(), self.run.job.model.hmm
        objective = counts.log_likelihood + log_prior(self.weights, asked.smoothing)
        gain = None if self.state.objective is None else (objective - self.state.objective) / self.text.tokens
        self.weights = maximise(counts, self.weights, asked.smoothing)
        seconds = self.crew.share(time.perf_counter() - began)[0]
        spent, step = self.state.train_s + seconds, self.state.step + 1
        late = self.run.time_s is not None and spent + seconds > self.run.time_s
        flat = gain is not None and gain < asked.least_gain
        self.state = Progressed(step, spent, objective, converged=flat or late)
        self._tell_step(-counts.log_likelihood / self.text.tokens, gain, seconds)
        if counts.impossible:
            self.record.tell("warning", message=_impossible(counts.impossible, self.text.count))
        if flat or late:
            reason = f"an iteration gained {gain:.2g} nats a token" if flat else "the time is over"
            self.record.tell("converged", step=step, gain=gain, reason=reason)

    def _first(self) -> Weights:
        self.record.tell_progress(Progress("initial", 0, 1, "points"))
        found = initial_weights(self.run.job.model.hmm, self.text, self.shape.vocabulary, self.run.job.seed)
        self.record.tell_progress(Progress("initial", 1, 1, "points"))
        return found

    def _agreed(self, weights: Weights | None) -> Weights:
        """Return rank 0's probabilities: only it reads them from the disk."""
        states, vocabulary = self.shape.states, self.shape.vocabulary
        sizes = ((states,), (states, states), (states, vocabulary))
        tables = list(weights.tables.values()) if weights else [np.empty(size) for size in sizes]
        for table in tables if self.crew.world > 1 else ():
            dist.broadcast(torch.from_numpy(table), src=0)
        return Weights(*tables)

    def _evaluate(self, sequences: int | None) -> Evaluation | None:
        """Measure on held-out text, on rank 0 alone, and show what the model would write."""
        if self.crew.rank:
            return None
        model = HiddenMarkov(self.shape, self.weights)
        result = evaluate_model(model, self.corpus.validation, sequences, self._report)
        step = self.state.step
        self.record.tell("evaluation", step=step, **asdict(result))
        self.record.plot(step, validation__loss=result.loss, validation__bits_per_byte=result.bits_per_byte)
        self._show(model)
        return result

    def _show(self, model: HiddenMarkov) -> None:
        tokenizer, random = self.corpus.tokenizer, np.random.default_rng((self.run.job.seed, self.state.step))
        for prompt in self.run.job.train.sample_prompts or ("",):
            ids = np.array(tokenizer.encode(prompt), np.int64)
            state_S = model.read(model.first(), ids)[-1] if len(ids) else None
            tokens_T, _ = model.sample(SAMPLE_TOKENS, random, state_S)
            text = prompt + tokenizer.decode(tokens_T.tolist())
            self.record.tell("sample", step=self.state.step, text=text)
            self.record.plot_text(self.state.step, "sample", text)

    def _save(self) -> None:
        with accord(self.crew, f"{self.folder}: the checkpoint could not be written"):
            if self.crew.rank == 0:
                self.saves.save(self.weights, self.state)

    def _save_if_possible(self) -> None:
        """A checkpoint that fails costs a checkpoint, not the run."""
        try:
            self._save()
        except StoreFailed as failure:
            self.record.tell("warning", message=failure.message)

    def _finish(self) -> None:
        self._save()
        with accord(self.crew, f"{self.folder}: the model could not be written"):
            result = self._evaluate(self.run.final_sequences)
            if result is not None:
                self._export(result)

    def _export(self, result: Evaluation) -> None:
        def write(writer: DirectoryWriter, special_tokens: SpecialTokens) -> Shape:
            write_model(writer, self.shape, self.weights.astype(np.float32), special_tokens)
            return self.shape

        done = self.run.model_copy(update={"steps": self.state.step})
        path = save_directory(self.folder, done, write, self.corpus, result)
        self.record.tell(
            "finished",
            step=self.state.step,
            train_s=round(self.state.train_s, 2),
            model=str(path),
            durable=True,
        )

    def _tell_start(self) -> None:
        self.record.tell(
            "started",
            parameters=self.shape.parameters,
            steps=self.run.steps,
            device="cpu",
            threads=self.threads,
            compile=False,
            layout=str(self.run.layout),
            workers=self.crew.world,
        )

    def _tell_step(self, loss: float, gain: float | None, seconds: float) -> None:
        """`loss` is that of the probabilities before this iteration, `gain` what the one before it gained."""
        if self.crew.rank:
            return
        step, speed = self.state.step, self.text.tokens / seconds
        peak = known_peak(torch.device("cpu")) * self.threads * self.crew.world
        self.record.tell(
            "step",
            step=step,
            steps=self.run.steps,
            loss=round(loss, 9),
            gain=gain,
            seconds=round(seconds, 3),
            tokens_per_s=round(speed, 1),
            share_of_peak=round(speed * 6.0 * self.shape.states**2 / peak, 4),
            seconds_left=round((self.run.steps - step) * seconds, 1),
        )
        self.record.plot(step, train__loss=loss, train__tokens_per_s=speed)

    def _report(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self.record.tell_progress(progress)


def _impossible(count: int, total: int) -> str:
    return f"{count} of {total} sequences are impossible as things stand; raise [model.hmm] smoothing"
