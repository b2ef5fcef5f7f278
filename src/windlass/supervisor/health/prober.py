"""A thread that sends one replica a golden prompt every few seconds and grades the answer.

After a bad answer the same prompt is repeated at once: that shows whether it was chance, and confirms a fault
that only one prompt finds. The time limit of an answer grows with the load of the engine, which its pongs
report.
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
    golden_answer_of,
    golden_prompts_for,
)
from windlass.supervisor.health.health_policy import Grade

AGAIN_S = 0.1
REFUSALS = ("bad_request", "not_generative")
"""An engine that refuses golden prompts, as other engines may, cannot be probed: that is no fault."""
SLOWEST = 4.0
"""An answer that takes this many times the limit counts as none."""


class WrongAnswer(Exception):
    """The answer cannot be right, whatever the known answer is."""


@dataclass(frozen=True)
class Probed:
    """The grade of one probe."""

    replica: str
    grade: Grade
    took_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class ProbeTarget:
    """A replica to probe, and its models with their folders."""

    replica: str
    socket: Path
    models: tuple[tuple[str, Path], ...]


class Prober:
    """Probes until it is stopped; the results go into a queue."""

    def __init__(
        self, target: ProbeTarget, health: HealthChecks, db: Database, found: queue.SimpleQueue[Probed]
    ) -> None:
        self._target, self._health, self._db, self._found = target, health, db, found
        self._stopped = threading.Event()
        self._client: EngineClient | None = None
        self._known: dict[str, list[tuple[GoldenPrompt, GoldenAnswer]]] = {}
        self._loaded = {target.models[0][0]}

    def start(self) -> None:
        name = f"prober {self._target.replica}"
        threading.Thread(target=self._run, daemon=True, name=name).start()

    def note_loaded(self, model: str) -> None:
        """Probe a further model from now on: clients use it, so the engine holds it anyway."""
        self._loaded.add(model)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            try:
                probed = self.step(number)
            except WindlassError:  # the database is unreachable: without known answers nothing is graded
                self._stopped.wait(self._health.every)
                continue
            self._found.put(probed)
            number += probed.grade == "right"
            self._stopped.wait(self._health.every if probed.grade == "right" else AGAIN_S)
        self._disconnect()

    def step(self, number: int) -> Probed:
        """Send one prompt, to one loaded model after another."""
        models = [each for each in self._target.models if each[0] in self._loaded]
        model, folder = models[number % len(models)]
        try:
            return self._probe(model, folder, number // len(models))
        except WrongAnswer as error:
            return Probed(self._target.replica, "wrong", why=f"wrong: {error}")
        except NoAnswer as error:
            self._disconnect()
            return Probed(self._target.replica, "silent", why=f"silent: {error}")

    def _probe(self, model: str, folder: Path, number: int) -> Probed:
        client = self._connected()
        limit_s = self._health.within * (1 + client.load(self._health.within))
        if model not in self._known:
            self._known[model] = self._learn(client, model, folder, limit_s)
        known = self._known[model]
        if not known:
            return Probed(self._target.replica, "right")
        prompt, expected = known[number % len(known)]
        answer = client.ask(prompt.request(model), SLOWEST * limit_s)
        wrong = differs(expected, answer)
        if wrong:
            return Probed(self._target.replica, "wrong", answer.took_s, f"wrong: {wrong}")
        if answer.took_s > limit_s:
            why = f"slow: {answer.took_s:.2f} s for an answer that may take {limit_s:.2f} s"
            return Probed(self._target.replica, "slow", answer.took_s, why)
        return Probed(self._target.replica, "right", answer.took_s)

    def _learn(
        self, client: EngineClient, model: str, folder: Path, limit_s: float
    ) -> list[tuple[GoldenPrompt, GoldenAnswer]]:
        """Return prompts with known answers, recorded now if there are none; empty if it cannot be probed."""
        offered = client.ready.about(model)
        prompts = golden_prompts_for(offered)
        engine = f"{client.ready.engine} {__version__} {offered.precision}"
        fingerprint = fingerprint_of(folder)
        text = find_answers(self._db, model, fingerprint, engine)
        if text is None:
            replies = [client.ask(each.request(model), SLOWEST * limit_s) for each in prompts]
            if any(each.failed.startswith(REFUSALS) for each in replies):
                return []
            answers = [golden_answer_of(each) for each in replies]
            if None in answers:
                raise WrongAnswer(
                    next((each.failed for each in replies if each.failed), "a score is not finite")
                )
            text = keep_answers(
                self._db, model, fingerprint, engine, json.dumps(msgspec.to_builtins(answers))
            )
        return list(zip(prompts, msgspec.json.decode(text, type=list[GoldenAnswer]), strict=True))

    def _connected(self) -> EngineClient:
        if self._client is None:
            self._client = EngineClient(self._target.socket)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
