"""Sequences to unit vectors: the mean of the final hidden states of a sequence's own tokens.

Input: an Embed request. Output: Vectors, after as many steps as its inputs need.

Legend: B inputs, T time, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from windlass.models.language import LanguageModel
from windlass.serve.engine.sequence import Owner, outside
from windlass.spec.wire import Embed


@dataclass(eq=False)
class Embedding:
    """An Embed request on its way; the longest inputs come first, so that neighbours need little padding."""

    owner: Owner
    request: Embed
    vectors: dict[int, list[float]] = field(default_factory=dict)
    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = sorted(range(len(self.request.inputs)), key=lambda i: len(self.request.inputs[i]))

    def step(self, model: LanguageModel, budget: int) -> bool:
        """Compute inputs of about `budget` tokens, padding included; return whether all are done."""
        taken = [self.left.pop()]
        width = len(self.request.inputs[taken[0]])
        while self.left and width * (len(taken) + 1) <= budget:
            taken.append(self.left.pop())
        found = embed(model, [self.request.inputs[i] for i in taken])
        self.vectors |= dict(zip(taken, found, strict=True))
        return not self.left


def embed(model: LanguageModel, inputs: list[list[int]]) -> list[list[float]]:
    """Return one unit vector for each input."""
    device = model.output_weight.device
    lengths_B = torch.tensor([len(tokens) for tokens in inputs], device=device)
    width = int(lengths_B.max())
    tokens_BT = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in inputs], device=device)
    real_BT = torch.arange(width, device=device) < lengths_B[:, None]
    # Padding comes last, where a causal model's real tokens do not see it anyway.
    mask_BT = None if model.causal or bool(real_BT.all()) else real_BT
    x_BTD = model(tokens_BT, key_mask_BT=mask_BT).float()
    mean_BD = (x_BTD * real_BT[:, :, None]).sum(dim=1) / lengths_B[:, None]
    vectors: list[list[float]] = F.normalize(mean_BD, dim=-1).tolist()
    return vectors


def refusal(request: Embed, vocabulary: int, context: int) -> tuple[str, str] | None:
    """Return code and message of what is wrong with a request, or None."""
    for number, tokens in enumerate(request.inputs):
        bad = outside(tokens, vocabulary)
        if not tokens:
            return "bad_tokens", f"input {number} is empty"
        if bad is not None:
            return "bad_tokens", f"input {number}: token {bad} is not in the vocabulary of {vocabulary}"
        if len(tokens) > context:
            return (
                "context_exceeded",
                f"input {number} has {len(tokens)} tokens, but the context is {context}",
            )
    return None if request.inputs else ("bad_tokens", "there are no inputs")
