"""One pipeline stage of a model.

Input: the whole model without memory (device "meta") and a slice of the partition. Output: a module that
holds only the layers, embedding and head of that slice.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from windlass.models.language import LanguageModel
from windlass.parallel.context_parallel import DividedSequence
from windlass.spec.layout import StageSlice

Loss = Callable[[LanguageModel, Tensor, Tensor], Tensor]
"""Final states and targets, to the sum of the losses."""


class ModelStage(nn.Module):
    """Takes tokens, or activations of the stage before; returns activations, or the final states."""

    def __init__(self, model: LanguageModel, piece: StageSlice, divided: DividedSequence | None) -> None:
        super().__init__()
        self.piece, self.divided = piece, divided
        self.length = model.shape.context if divided is None else len(divided.own_S)
        keep_piece(model, piece)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        positions, cache = (None, None) if self.divided is None else (self.divided.positions, self.divided)
        length = self.length
        if self.piece.embedding:
            length = x.shape[1]
            x = self.model.embed(x, positions)
        x = self.model.through(x, length, positions, cache)
        return self.model.finish(x) if self.piece.head else x


def keep_piece(model: LanguageModel, piece: StageSlice) -> None:
    """Remove the modules that other stages compute."""
    wanted = {*(model.entry if piece.embedding else ()), *(model.exit if piece.head else ())}
    if piece.head and model.output_weight is model.get_submodule("embedding").weight:
        wanted.add("embedding")
    for name in {*model.entry, *model.exit} - wanted:
        delattr(model, name)
    for number in list(model.layers):
        if not piece.first <= int(number) < piece.until:
            del model.layers[number]
