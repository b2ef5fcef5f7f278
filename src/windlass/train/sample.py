"""Generates sample text during training.

It computes the whole sequence for every token: a few dozen tokens at a time do not justify a KV cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TEMPERATURE = 0.8


def continue_tokens(
    last_scores: Callable[[Tensor], Tensor],
    prompt: list[int],
    count: int,
    *,
    context: int,
    seed: int,
    end: int,
) -> list[int]:
    """Return up to `count` tokens that follow `prompt`; `last_scores` scores the token after a text."""
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt) or [end]
    first = len(tokens)
    for _ in range(count):
        scores_V = last_scores(torch.tensor([tokens[-context:]]))
        chosen = int(torch.multinomial(torch.softmax(scores_V / TEMPERATURE, -1), 1, generator=generator))
        if chosen == end:
            break
        tokens.append(chosen)
    return tokens[first:]
