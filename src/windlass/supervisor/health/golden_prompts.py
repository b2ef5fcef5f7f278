"""Golden prompts: fixed token ids in, known token ids and scores out.

The prompts are a pure function of the model's shape; the answers are recorded once, when a version is first
loaded and its files have been verified. From then on an engine that answers differently has other weights,
another vocabulary or a fault, whatever it reports about itself.

A token is expected only where it was clearly the likeliest: batches and caches may change the last digits of
a score, so a healthy engine may decide a near tie differently. Scores count as equal
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
"""Lengths of the prompts. The last two share a prefix, so that the prefix cache is probed as well."""
ANSWER_TOKENS = 8
CLEAR_NATS = 0.1
"""Lead over the second token that makes the likeliest token expected."""
TOLERANCE_NATS = 0.05
TOLERANCE_VECTOR = 0.01
PRIORITY = 100
TENANT = "windlass-health"
ENCODERS = frozenset({"bert"})


class GoldenAnswer(msgspec.Struct, frozen=True):
    """What a healthy engine answers to one prompt."""

    tokens: list[int]
    """The expected tokens, up to the first near tie."""
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


def golden_prompts_for(offered: ModelInfo) -> list[GoldenPrompt]:
    """Return the prompts for a model; shorter ones if its context is short."""
    draw = random.Random(f"{SEED} {offered.vocabulary}")
    room = max(1, offered.context - ANSWER_TOKENS)
    shared = [draw.randrange(offered.vocabulary) for _ in range(max(LENGTHS))]
    prompts = [[draw.randrange(offered.vocabulary) for _ in range(length)] for length in LENGTHS[:-2]]
    prompts += [shared[: LENGTHS[-2]], shared]
    return [GoldenPrompt(tuple(prompt[:room]), offered.family in ENCODERS) for prompt in prompts]


def golden_answer_of(answer: EngineAnswer) -> GoldenAnswer | None:
    """Turn an answer into the expected one; None if it cannot be a healthy answer."""
    if answer.failed or not all(map(math.isfinite, [*answer.scores, *answer.logprobs])):
        return None
    if answer.vectors:
        return GoldenAnswer([], [], answer.vectors[0]) if all(map(math.isfinite, answer.vectors[0])) else None
    return GoldenAnswer(answer.tokens[: _clear(answer)], answer.scores)


def differs(known: GoldenAnswer, answer: EngineAnswer) -> str:
    """Return how an answer differs from the known one; empty if it does not."""
    if answer.failed:
        return answer.failed
    if known.vector:
        apart = _apart(known.vector, answer.vectors[0] if answer.vectors else [])
        return f"a vector is off by {apart:.3g}" if not apart <= TOLERANCE_VECTOR else ""
    if answer.tokens[: len(known.tokens)] != known.tokens:
        return f"{answer.tokens[: len(known.tokens)]} instead of {known.tokens}"
    apart = _apart(known.scores, answer.scores)
    return f"a score is off by {apart:.3g} nats" if not apart <= TOLERANCE_NATS else ""


def _clear(answer: EngineAnswer) -> int:
    """Count the tokens before the first near tie; a token's alternatives include itself."""
    for place, (logprob, others) in enumerate(zip(answer.logprobs, answer.alternatives, strict=False)):
        rivals = [each.logprob for each in others if each.token != answer.tokens[place]]
        if rivals and logprob - max(rivals) < CLEAR_NATS:
            return place
    return len(answer.tokens)


def _apart(one: list[float], other: list[float]) -> float:
    """The largest difference; infinite if the lengths differ or there is a NaN."""
    if len(one) != len(other):
        return math.inf
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(gaps, default=0.0) if not any(map(math.isnan, gaps)) else math.inf
