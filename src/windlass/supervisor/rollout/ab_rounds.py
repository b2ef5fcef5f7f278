"""Rounds: the same questions to both versions, one after the other.

Each round scores a passage (bits per byte, through each version's own tokenizer) and continues its first
half (time, length, repetition, failures). Before any request the rounds follow each other at once: that is
the gate. Afterwards they go on, slowly, for as long as the version is judged.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

from windlass.registry.versions import Version
from windlass.serve.gateway.text.served_model import ServedModel, load_served
from windlass.serve.gateway.text.tokenise import NumberText
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.wire import Embed, Generate
from windlass.supervisor.health.engine_client import EngineAnswer, EngineClient, NoAnswer
from windlass.supervisor.rollout.criteria import AnswerSample
from windlass.supervisor.rollout.eval_texts import ENCODERS, EvalText, Passages, find_passages

ANSWER_TOKENS = 24
ANSWER_S = 60.0
EVERY_S = 1.0
GATE_ROUNDS = 32
PRIORITY = 50
TENANT = "windlass-rollout"


@dataclass(frozen=True)
class Round:
    """What one round found. A fault is what no good version does."""

    stable: AnswerSample
    candidate: AnswerSample
    stable_bits: float = 0.0
    candidate_bits: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class Side:
    """One version: its language, and where it can be asked."""

    served: ServedModel
    socket: Path


class Rounds:
    """Does rounds in a thread until it is stopped; what they find goes into `found`."""

    def __init__(self, stable: Side, candidate: Side, held_out: str, version: Version | None) -> None:
        self.found: queue.SimpleQueue[Round | Passages] = queue.SimpleQueue()
        """First the passages, then rounds."""
        self._stable, self._candidate = stable, candidate
        self._held_out, self._version = held_out, version
        self._askers: dict[Path, EngineClient] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="roll-out").start()

    def meet_at(self, stable: Path, candidate: Path) -> None:
        """Ask other replicas from the next round on."""
        self._stable = Side(self._stable.served, stable)
        self._candidate = Side(self._candidate.served, candidate)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        passages, number = None, 0
        while not self._stopped.is_set():
            try:
                if passages is None:
                    asker = self._asker(self._stable)
                    passages = find_passages(self._held_out, self._version, self._stable.served, asker)
                    self.found.put(passages)
                self.found.put(self.step(passages, number))
                number += 1
            except NoAnswer:
                self._hang_up()  # one of them is away: its health and its deaths are counted elsewhere
                self._stopped.wait(EVERY_S)
            except WindlassError as error:
                self.found.put(
                    Round(AnswerSample(), AnswerSample(), fault=f"the versions cannot be compared: {error}")
                )
                break
            self._stopped.wait(0.0 if number < GATE_ROUNDS else EVERY_S)
        self._hang_up()

    def step(self, passages: Passages, number: int) -> Round:
        """Do one round; every other one asks the new version first, so neither finds caches warmer."""
        passage = passages.draw(number)
        sides = [self._stable, self._candidate]
        first, second = (
            _answered(self._asker(side), side.served, passage, number)
            for side in (sides if number % 2 else reversed(sides))
        )
        old, new = (first, second) if number % 2 else (second, first)
        return Round(old.sample, new.sample, old.bits, new.bits, "" if old.fault else new.fault)

    def _asker(self, side: Side) -> EngineClient:
        if side.socket not in self._askers:
            self._askers[side.socket] = EngineClient(side.socket)
        return self._askers[side.socket]

    def _hang_up(self) -> None:
        for asker in self._askers.values():
            asker.close()
        self._askers.clear()


def side_of(version: str, folder: Path, socket: Path) -> Side:
    return Side(load_served(folder, version), socket)


@dataclass(frozen=True)
class _Answered:
    sample: AnswerSample
    bits: float = 0.0
    fault: str = ""


def _answered(asker: EngineClient, served: ServedModel, passage: EvalText, number: int) -> _Answered:
    """Score a passage and continue its first half."""
    offered = asker.ready.about(served.id)
    tokens = _encoded(served, passage)
    if not tokens or max(tokens) >= offered.vocabulary:
        return _Answered(
            AnswerSample(failed=True), fault="its tokenizer gives tokens that the model does not know"
        )
    if offered.family in ENCODERS:
        return _encoded_by(asker, served, tokens[: offered.context])
    scored = tokens[: offered.context - 1]
    ask = Generate("", scored, 1, temperature=0.0, score_prompt=True, model=served.id, tenant=TENANT,
                   priority=PRIORITY)  # fmt: skip
    heard = asker.ask(ask, ANSWER_S)
    bits = bits_per_byte(heard.scores, len(tokens), offered.vocabulary, passage.bytes)
    prompt = scored[: max(1, min(len(scored) // 2, offered.context - ANSWER_TOKENS - 1))]
    more = Generate("", prompt, min(ANSWER_TOKENS, offered.context - len(prompt)), temperature=0.8,
                    seed=number, stop_tokens=[t for t in served.stop_tokens if t < offered.vocabulary],
                    model=served.id, tenant=TENANT, priority=PRIORITY)  # fmt: skip
    went_on = asker.ask(more, ANSWER_S)
    failed = heard.failed or went_on.failed
    if failed.startswith("not_a_number") or not math.isfinite(bits):
        return _Answered(
            AnswerSample(failed=True), fault=f"it computes what is no number: {failed or 'a score'}"
        )
    return _Answered(sample_of(went_on, failed=bool(failed)), bits)


def _encoded_by(asker: EngineClient, served: ServedModel, tokens: list[int]) -> _Answered:
    """Have an encoder turn tokens into a vector; its values are its own, so only failure and time count."""
    heard = asker.ask(Embed("", [tokens], model=served.id, tenant=TENANT, priority=PRIORITY), ANSWER_S)
    if heard.failed.startswith("not_a_number"):
        return _Answered(AnswerSample(failed=True), fault=f"it computes what is no number: {heard.failed}")
    return _Answered(AnswerSample(bool(heard.failed), heard.took_s))


def bits_per_byte(scores: list[float], tokens: int, vocabulary: int, size: int) -> float:
    """Return the cost of a text; a token that nobody scored costs as much as a guess among all."""
    unscored = tokens - len(scores)
    return (-sum(scores) / math.log(2) + unscored * math.log2(vocabulary)) / max(1, size)


def sample_of(heard: EngineAnswer, *, failed: bool) -> AnswerSample:
    return AnswerSample(
        failed, heard.first_token_s, heard.per_token_s, len(heard.tokens), repetition_of(heard.tokens)
    )


def repetition_of(tokens: list[int]) -> float:
    """Return the part of the pairs of tokens that came before, as spec/protocol/routing.py has it."""
    pairs = list(itertools.pairwise(tokens))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _encoded(served: ServedModel, passage: EvalText) -> list[int]:
    if isinstance(served.text, NumberText) or not passage.text:
        return list(passage.tokens)
    return served.text.encode(passage.text, special=False, context=1 << 20)
