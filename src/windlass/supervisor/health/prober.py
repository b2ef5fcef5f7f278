"""A thread that asks one replica a known question every few seconds and says how it answered.

After a bad answer the same question is asked again at once: whether it was chance is known a moment later,
and a fault that only one question finds is found for certain. The time that an
answer may take grows with what the engine has to do, which it says itself when it is pinged.
"""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass import __version__
from windlass.serve.records.golden_answers import find_answers, fingerprint_of, keep_answers
from windlass.spec.errors import WindlassError
from windlass.spec.rollout import HealthChecks
from windlass.store.database import Database
from windlass.supervisor.health.engine_client import EngineClient, NoAnswer
from windlass.supervisor.health.golden_prompts import (
    GoldenAnswer,
    GoldenPrompt,
    differs,
    known_from,
    questions_for,
)
from windlass.supervisor.health.health_policy import Grade

AGAIN_S = 0.1
REFUSALS = ("bad_request", "not_generative")
"""An engine that refuses such questions, as foreign ones may, cannot be asked: that is no fault."""
SLOWEST = 4.0
"""An answer that takes so many times the limit counts as none."""


class WrongAnswer(Exception):
    """What was answered cannot be right, whatever is known."""


@dataclass(frozen=True)
class Probed:
    """How a replica answered one question."""

    replica: str
    grade: Grade
    took_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Subject:
    """A replica to ask, and the models to ask it about, with their folders."""

    replica: str
    socket: Path
    models: tuple[tuple[str, Path], ...]


class Prober:
    """Asks until it is stopped; what it finds goes into a queue."""

    def __init__(
        self, subject: Subject, health: HealthChecks, db: Database, found: queue.SimpleQueue[Probed]
    ) -> None:
        self._subject, self._health, self._db, self._found = subject, health, db, found
        self._stopped = threading.Event()
        self._asker: EngineClient | None = None
        self._known: dict[str, list[tuple[GoldenPrompt, GoldenAnswer]]] = {}
        self._loaded = {subject.models[0][0]}

    def start(self) -> None:
        name = f"prober {self._subject.replica}"
        threading.Thread(target=self._run, daemon=True, name=name).start()

    def note_loaded(self, model: str) -> None:
        """Ask about a further model from now on: clients use it, so the engine holds it anyway."""
        self._loaded.add(model)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            try:
                probed = self.step(number)
            except WindlassError:  # the state is away: what is known cannot be looked up, so nobody is judged
                self._stopped.wait(self._health.every)
                continue
            self._found.put(probed)
            number += probed.grade == "right"
            self._stopped.wait(self._health.every if probed.grade == "right" else AGAIN_S)
        self._hang_up()

    def step(self, number: int) -> Probed:
        """Ask one question, of one loaded model after another."""
        models = [each for each in self._subject.models if each[0] in self._loaded]
        model, folder = models[number % len(models)]
        try:
            return self._ask(model, folder, number // len(models))
        except WrongAnswer as error:
            return Probed(self._subject.replica, "wrong", why=f"wrong: {error}")
        except NoAnswer as error:
            self._hang_up()
            return Probed(self._subject.replica, "silent", why=f"silent: {error}")

    def _ask(self, model: str, folder: Path, number: int) -> Probed:
        asker = self._connected()
        limit_s = self._health.within * (1 + asker.load(self._health.within))
        if model not in self._known:
            self._known[model] = self._learn(asker, model, folder, limit_s)
        known = self._known[model]
        if not known:
            return Probed(self._subject.replica, "right")
        question, expected = known[number % len(known)]
        heard = asker.ask(question.request(model), SLOWEST * limit_s)
        wrong = differs(expected, heard)
        if wrong:
            return Probed(self._subject.replica, "wrong", heard.took_s, f"wrong: {wrong}")
        if heard.took_s > limit_s:
            why = f"slow: {heard.took_s:.2f} s for an answer that may take {limit_s:.2f} s"
            return Probed(self._subject.replica, "slow", heard.took_s, why)
        return Probed(self._subject.replica, "right", heard.took_s)

    def _learn(
        self, asker: EngineClient, model: str, folder: Path, limit_s: float
    ) -> list[tuple[GoldenPrompt, GoldenAnswer]]:
        """Return the known answers, asked for where nobody did before; empty if it cannot be asked."""
        offered = asker.ready.about(model)
        questions = questions_for(offered)
        engine = f"{asker.ready.engine} {__version__} {offered.precision}"
        fingerprint = fingerprint_of(folder)
        text = find_answers(self._db, model, fingerprint, engine)
        if text is None:
            heard = [asker.ask(each.request(model), SLOWEST * limit_s) for each in questions]
            if any(each.failed.startswith(REFUSALS) for each in heard):
                return []
            answers = [known_from(each) for each in heard]
            if None in answers:
                raise WrongAnswer(next((each.failed for each in heard if each.failed), "no numbers"))
            text = keep_answers(
                self._db, model, fingerprint, engine, json.dumps(msgspec.to_builtins(answers))
            )
        return list(zip(questions, msgspec.json.decode(text, type=list[GoldenAnswer]), strict=True))

    def _connected(self) -> EngineClient:
        if self._asker is None:
            self._asker = EngineClient(self._subject.socket)
        return self._asker

    def _hang_up(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None
