"""Continues a text while training, so that a person can see what the numbers mean.

It computes the whole sequence for every token: a few dozen tokens now and then do not pay for a cache.
"""

from __future__ import annotations

import torch

from windlass.models.language import LanguageModel

TEMPERATURE = 0.8


@torch.inference_mode()
def continue_tokens(model: LanguageModel, prompt: list[int], count: int, *, seed: int, end: int) -> list[int]:
    """Return up to `count` tokens that follow `prompt`."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt) or [end]
    first = len(tokens)
    for _ in range(count):
        seen_BT = torch.tensor([tokens[-model.shape.context :]], device=device)
        logits_V = model.logits(model(seen_BT)[:, -1:])[0, 0].float().cpu()
        chosen = int(torch.multinomial(torch.softmax(logits_V / TEMPERATURE, -1), 1, generator=generator))
        if chosen == end:
            break
        tokens.append(chosen)
    return tokens[first:]
