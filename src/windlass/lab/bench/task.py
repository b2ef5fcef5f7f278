"""A benchmark task and its result: rates and delays from the times of tokens.

A task is a closed loop: `concurrency` requests are in flight until all are answered, each with the same
number of tokens. All times of one contender are by one clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BenchTask:
    """Prompts, and the number of output tokens of each."""

    prompts: list[list[int]]
    output: int
    concurrency: int


@dataclass(frozen=True)
class TimedAnswer:
    """One request: when it was sent, and its tokens with the time of each."""

    sent_s: float
    times_s: list[float]
    tokens: list[int]


@dataclass(frozen=True)
class TaskSpeed:
    """Throughput and latency of a contender on a task."""

    tokens_per_s: float
    first_p50_s: float
    first_p99_s: float
    between_p50_s: float
    between_p99_s: float


def draw_task(
    seed: Sequence[int], *, vocabulary: int, prompt: int, output: int, concurrency: int, requests: int
) -> BenchTask:
    """Draw prompts without common prefixes, so that no cache helps."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, vocabulary, size=(max(requests, concurrency), prompt))
    return BenchTask(prompts.tolist(), output, concurrency)


def pace_of(answers: Sequence[TimedAnswer]) -> TaskSpeed:
    """Compute the speed from the first request to the last token."""
    began = min(answer.sent_s for answer in answers)
    ended = max(answer.times_s[-1] for answer in answers)
    first = [answer.times_s[0] - answer.sent_s for answer in answers]
    between = [b - a for answer in answers for a, b in itertools.pairwise(answer.times_s)]
    return TaskSpeed(
        sum(len(answer.tokens) for answer in answers) / (ended - began),
        *np.percentile(first, (50, 99)).tolist(),
        *np.percentile(between or [0.0], (50, 99)).tolist(),
    )


def agreement(ours: Sequence[TimedAnswer], theirs: Sequence[TimedAnswer]) -> float:
    """Return the share of answers with the same first token: near 1 if both compute the same model.

    Later tokens say less: after one near tie that is decided differently, the rest differs.
    """
    same = [a.tokens[0] == b.tokens[0] for a, b in zip(ours, theirs, strict=True)]
    return sum(same) / len(same)
