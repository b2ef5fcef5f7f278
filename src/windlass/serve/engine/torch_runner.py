"""The torch runner: for GPUs, and for processors on which the native library does not run.

Keys and values are in the same blocks; attention gathers those of a span and calls torch's own kernel.
Results agree with those of any other batch up to rounding, not to the bit.

Legend: L layers, N blocks, P places in a block, T tokens of a step, H query heads, K key/value heads,
C width of a head, W keys that a span may see, B rows of scores, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windlass.models.attention import PLAIN, AttentionRule, causal_mask, masked_attention
from windlass.models.language import LanguageModel
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.runner import BLOCK_TOKENS, Computed, Span
from windlass.serve.engine.torch_adapters import TorchAdapters
from windlass.spec.shape import DecoderShape


class TorchRunner:
    """A model on one device, with its blocks."""

    def __init__(self, model: LanguageModel, *, blocks: int) -> None:
        shape = model.shape
        assert isinstance(shape, DecoderShape)
        self.shape, self.blocks, self.thread_pool = shape, blocks, None
        weight = model.output_weight
        self.precision = str(weight.dtype).removeprefix("torch.")
        self._model, self._device = model.eval(), weight.device
        self._adapters = TorchAdapters(model)
        self._kv_L2NPKC = torch.zeros(
            (shape.layers, 2, blocks, BLOCK_TOKENS, shape.kv_heads, shape.head_width),
            dtype=weight.dtype, device=self._device,
        )  # fmt: skip

    @torch.inference_mode()
    def run(self, spans: Sequence[Span], tables: NDArray[np.int32], *, hidden: bool = False) -> Computed:
        tokens = [token for span in spans for token in span.tokens]
        positions = [span.position + i for span in spans for i in range(len(span.tokens))]
        self._adapters.begin(spans)
        cache = _Step(self._kv_L2NPKC, spans, tables)
        x_1TD = self._model(
            torch.tensor([tokens], device=self._device),
            positions_BT=torch.tensor([positions], device=self._device),
            cache=cache,
        )
        outs = _out_rows(spans)
        logits_BV = self._model.logits(x_1TD[0, outs]).float().cpu().numpy() if outs else self._no_scores()
        return Computed(np.ascontiguousarray(logits_BV), x_1TD[0].float().cpu().numpy() if hidden else None)

    def take_adapter(self, adapter: Adapter) -> int:
        return self._adapters.take(adapter)

    def _no_scores(self) -> NDArray[np.float32]:
        return np.empty((0, self.shape.vocabulary), np.float32)


class _Step:
    """The KeyValues (windlass.models.language) of one step."""

    def __init__(self, kv_L2NPKC: Tensor, spans: Sequence[Span], tables: NDArray[np.int32]) -> None:
        self._kv = kv_L2NPKC
        self._spans = spans
        self._slots = [_slots(span, tables).to(kv_L2NPKC.device) for span in spans]

    def attend(
        self,
        layer: int,
        q_BHTC: Tensor,
        k_BKTC: Tensor,
        v_BKTC: Tensor,
        rule: AttentionRule = PLAIN,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Store the keys and values of this step's tokens (B = 1), then attend causally."""
        kept_2SKC = self._kv[layer].flatten(1, 2)
        parts, at = [], 0
        for span, slots_W in zip(self._spans, self._slots, strict=True):
            rows = slice(at, at + len(span.tokens))
            at = rows.stop
            kept_2SKC[0, slots_W[span.position :]] = k_BKTC[0, :, rows].transpose(0, 1)
            kept_2SKC[1, slots_W[span.position :]] = v_BKTC[0, :, rows].transpose(0, 1)
            keys_KWC, values_KWC = kept_2SKC[:, slots_W].transpose(1, 2)
            parts.append(_mix(q_BHTC[0, :, rows], keys_KWC, values_KWC, span.position, rule, sinks_H))
        return torch.cat(parts, dim=1)[None]


def _mix(
    q_HTC: Tensor,
    keys_KWC: Tensor,
    values_KWC: Tensor,
    position: int,
    rule: AttentionRule,
    sinks_H: Tensor | None,
) -> Tensor:
    keys_W = torch.arange(keys_KWC.shape[1], device=q_HTC.device)
    seen_TW = causal_mask(keys_W[position:], keys_W, rule.window)
    return masked_attention(q_HTC[None], keys_KWC[None], values_KWC[None], seen_TW, rule, sinks_H)[0]


def _slots(span: Span, tables: NDArray[np.int32]) -> Tensor:
    """Return the cache slot of each token of a sequence, from its first to the last of the span."""
    places_W = np.arange(span.position + len(span.tokens))
    blocks_W = tables[span.slot, places_W // BLOCK_TOKENS].astype(np.int64)
    return torch.from_numpy(blocks_W * BLOCK_TOKENS + places_W % BLOCK_TOKENS)


def _out_rows(spans: Sequence[Span]) -> list[int]:
    rows: list[int] = []
    at = 0
    for span in spans:
        at += len(span.tokens)
        rows += range(at - span.outs, at)
    return rows
