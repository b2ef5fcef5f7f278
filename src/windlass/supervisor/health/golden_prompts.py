"""Questions whose answers are known: fixed token ids in, expected token ids and scores out.

The questions are a pure function of what the model is; the answers are recorded once, when a version is first
loaded and its files have been checked against their manifest. From then on an engine that answers otherwise
has other weights, another tokenizer's shape or a fault, whatever it says about itself.

A token counts as expected only where it was clearly the likeliest: batches and caches may change the last
digits of a score, and a near tie would then be decided otherwise by a healthy engine. Scores count as equal
within a tolerance for the same reason.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import msgspec

from windlass.spec.protocol.wire import Embed, Generate, ModelInfo
from windlass.supervisor.health.engine_client import EngineAnswer

SEED = 20_26
LENGTHS = (6, 12, 24, 48, 96, 100)
"""Tokens of the prompts. The last two share a beginning, so that kept prefixes are asked about as well."""
ANSWER_TOKENS = 8
CLEAR_NATS = 0.1
"""How far the likeliest token must be ahead of the next to be expected."""
TOLERANCE_NATS = 0.05
TOLERANCE_VECTOR = 0.01
PRIORITY = 100
TENANT = "windlass-health"
ENCODERS = frozenset({"bert"})


class GoldenAnswer(msgspec.Struct, frozen=True):
    """What a healthy engine answers to one question."""

    tokens: list[int]
    """The expected beginning; it ends where two tokens were about equally likely."""
    scores: list[float]
    vector: list[float] = []


@dataclass(frozen=True)
class GoldenPrompt:
    """A fixed prompt, for one model of an engine."""

    prompt: tuple[int, ...]
    encodes: bool = False

    def request(self, model: str) -> Generate | Embed:
        if self.encodes:
            return Embed("", [list(self.prompt)], model=model, tenant=TENANT, priority=PRIORITY)
        return Generate(
            "", list(self.prompt), ANSWER_TOKENS, temperature=0.0, logprobs=2, score_prompt=True,
            model=model, tenant=TENANT, priority=PRIORITY,
        )  # fmt: skip


def questions_for(offered: ModelInfo) -> list[GoldenPrompt]:
    """Return the questions to ask a model; shorter ones where its context is short."""
    draw = random.Random(f"{SEED} {offered.vocabulary}")
    room = max(1, offered.context - ANSWER_TOKENS)
    shared = [draw.randrange(offered.vocabulary) for _ in range(max(LENGTHS))]
    prompts = [[draw.randrange(offered.vocabulary) for _ in range(length)] for length in LENGTHS[:-2]]
    prompts += [shared[: LENGTHS[-2]], shared]
    return [GoldenPrompt(tuple(prompt[:room]), offered.family in ENCODERS) for prompt in prompts]


def known_from(heard: EngineAnswer) -> GoldenAnswer | None:
    """Turn an answer into what is expected from now on; None where it is no healthy answer."""
    if heard.failed or not all(map(math.isfinite, [*heard.scores, *heard.logprobs])):
        return None
    if heard.vectors:
        return GoldenAnswer([], [], heard.vectors[0]) if all(map(math.isfinite, heard.vectors[0])) else None
    return GoldenAnswer(heard.tokens[: _clear(heard)], heard.scores)


def differs(known: GoldenAnswer, heard: EngineAnswer) -> str:
    """Say how an answer differs from what is known; empty if it does not."""
    if heard.failed:
        return heard.failed
    if known.vector:
        apart = _apart(known.vector, heard.vectors[0] if heard.vectors else [])
        return f"a vector is off by {apart:.3g}" if not apart <= TOLERANCE_VECTOR else ""
    if heard.tokens[: len(known.tokens)] != known.tokens:
        return f"{heard.tokens[: len(known.tokens)]} instead of {known.tokens}"
    apart = _apart(known.scores, heard.scores)
    return f"a score is off by {apart:.3g} nats" if not apart <= TOLERANCE_NATS else ""


def _clear(heard: EngineAnswer) -> int:
    """Count the tokens before the first that was nearly a tie; a token's alternatives include itself."""
    for place, (logprob, others) in enumerate(zip(heard.logprobs, heard.alternatives, strict=False)):
        rivals = [each.logprob for each in others if each.token != heard.tokens[place]]
        if rivals and logprob - max(rivals) < CLEAR_NATS:
            return place
    return len(heard.tokens)


def _apart(one: list[float], other: list[float]) -> float:
    """The largest difference; endless where one is longer or holds no numbers."""
    if len(one) != len(other):
        return math.inf
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(gaps, default=0.0) if not any(map(math.isnan, gaps)) else math.inf
