"""A/B rounds: the same requests to both versions, one after the other.

Each round scores a text (bits per byte, through each version's own tokenizer) and continues its first half
(time, length, repetition, failures). Before the version gets any client's request, GATE_ROUNDS rounds run
without a pause: that is the gate. Afterwards they continue, slowly, for as long as the version is judged.
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
from windlass.supervisor.rollout.eval_texts import ENCODERS, EvalText, EvalTexts, find_eval_texts

ANSWER_TOKENS = 24
ANSWER_S = 60.0
EVERY_S = 1.0
GATE_ROUNDS = 32
PRIORITY = 50
TENANT = "windlass-rollout"


@dataclass(frozen=True)
class Round:
    """The result of one round. A fault is something that no good version does."""

    stable: AnswerSample
    candidate: AnswerSample
    stable_bits: float = 0.0
    candidate_bits: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class Side:
    """One version: its tokenizer, and the socket of a replica."""

    served: ServedModel
    socket: Path


class Rounds:
    """Runs rounds in a thread until it is stopped; the results go into `found`."""

    def __init__(self, stable: Side, candidate: Side, held_out: str, version: Version | None) -> None:
        self.found: queue.SimpleQueue[Round | EvalTexts] = queue.SimpleQueue()
        """First the texts, then rounds."""
        self._stable, self._candidate = stable, candidate
        self._held_out, self._version = held_out, version
        self._clients: dict[Path, EngineClient] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="roll-out").start()

    def use_sockets(self, stable: Path, candidate: Path) -> None:
        """Use these replicas from the next round on."""
        self._stable = Side(self._stable.served, stable)
        self._candidate = Side(self._candidate.served, candidate)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        texts, number = None, 0
        while not self._stopped.is_set():
            try:
                if texts is None:
                    client = self._client(self._stable)
                    texts = find_eval_texts(self._held_out, self._version, self._stable.served, client)
                    self.found.put(texts)
                self.found.put(self.step(texts, number))
                number += 1
            except NoAnswer:
                self._disconnect()  # a replica is gone: health and deaths are counted elsewhere
                self._stopped.wait(EVERY_S)
            except WindlassError as error:
                self.found.put(
                    Round(AnswerSample(), AnswerSample(), fault=f"the versions cannot be compared: {error}")
                )
                break
            self._stopped.wait(0.0 if number < GATE_ROUNDS else EVERY_S)
        self._disconnect()

    def step(self, texts: EvalTexts, number: int) -> Round:
        """Run one round; every other round starts with the new version, so neither has warmer caches."""
        text = texts.draw(number)
        sides = [self._stable, self._candidate]
        first, second = (
            _answered(self._client(side), side.served, text, number)
            for side in (sides if number % 2 else reversed(sides))
        )
        old, new = (first, second) if number % 2 else (second, first)
        return Round(old.sample, new.sample, old.bits, new.bits, "" if old.fault else new.fault)

    def _client(self, side: Side) -> EngineClient:
        if side.socket not in self._clients:
            self._clients[side.socket] = EngineClient(side.socket)
        return self._clients[side.socket]

    def _disconnect(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def side_of(version: str, folder: Path, socket: Path) -> Side:
    return Side(load_served(folder, version), socket)


@dataclass(frozen=True)
class _Answered:
    sample: AnswerSample
    bits: float = 0.0
    fault: str = ""


def _answered(client: EngineClient, served: ServedModel, text: EvalText, number: int) -> _Answered:
    """Score a text and continue its first half."""
    offered = client.ready.about(served.id)
    tokens = _encoded(served, text)
    if not tokens or max(tokens) >= offered.vocabulary:
        return _Answered(
            AnswerSample(failed=True), fault="its tokenizer produces tokens outside the model's vocabulary"
        )
    if offered.family in ENCODERS:
        return _encoded_by(client, served, tokens[: offered.context])
    scored = tokens[: offered.context - 1]
    ask = Generate("", scored, 1, temperature=0.0, score_prompt=True, model=served.id, tenant=TENANT,
                   priority=PRIORITY)  # fmt: skip
    scored_answer = client.ask(ask, ANSWER_S)
    bits = bits_per_byte(scored_answer.scores, len(tokens), offered.vocabulary, text.bytes)
    prompt = scored[: max(1, min(len(scored) // 2, offered.context - ANSWER_TOKENS - 1))]
    more = Generate("", prompt, min(ANSWER_TOKENS, offered.context - len(prompt)), temperature=0.8,
                    seed=number, stop_tokens=[t for t in served.stop_tokens if t < offered.vocabulary],
                    model=served.id, tenant=TENANT, priority=PRIORITY)  # fmt: skip
    continuation = client.ask(more, ANSWER_S)
    failed = scored_answer.failed or continuation.failed
    if failed.startswith("not_a_number") or not math.isfinite(bits):
        return _Answered(
            AnswerSample(failed=True), fault=f"it computes NaN or infinity: {failed or 'a score'}"
        )
    return _Answered(sample_of(continuation, failed=bool(failed)), bits)


def _encoded_by(client: EngineClient, served: ServedModel, tokens: list[int]) -> _Answered:
    """Send an encoder an Embed request; only failure and time of two versions are comparable."""
    scored_answer = client.ask(
        Embed("", [tokens], model=served.id, tenant=TENANT, priority=PRIORITY), ANSWER_S
    )
    if scored_answer.failed.startswith("not_a_number"):
        return _Answered(
            AnswerSample(failed=True), fault=f"it computes NaN or infinity: {scored_answer.failed}"
        )
    return _Answered(AnswerSample(bool(scored_answer.failed), scored_answer.took_s))


def bits_per_byte(scores: list[float], tokens: int, vocabulary: int, size: int) -> float:
    """Return the bits per byte of a text; an unscored token costs as much as a uniform guess."""
    unscored = tokens - len(scores)
    return (-sum(scores) / math.log(2) + unscored * math.log2(vocabulary)) / max(1, size)


def sample_of(scored_answer: EngineAnswer, *, failed: bool) -> AnswerSample:
    return AnswerSample(
        failed,
        scored_answer.first_token_s,
        scored_answer.per_token_s,
        len(scored_answer.tokens),
        repetition_of(scored_answer.tokens),
    )


def repetition_of(tokens: list[int]) -> float:
    """Return the share of token pairs that occurred before, as in windlass.spec.protocol.routing."""
    pairs = list(itertools.pairwise(tokens))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _encoded(served: ServedModel, text: EvalText) -> list[int]:
    if isinstance(served.text, NumberText) or not text.text:
        return list(text.tokens)
    return served.text.encode(text.text, special=False, context=1 << 20)
