"""Keys and values of all running sequences, and attention over them.

One tensor holds them: layer, keys or values, slot, head, position. Sequences that decode sit in the first
slots, so a step attends over one slice of it without gathering. It grows by doubling, in slots and in
positions, as sequences need it, and falls back when nothing runs; so memory follows use.

A step computes the tokens of all sequences as one packed row of a batch: first one token of every
decoding sequence, then chunks of prompts, one after the other.

Legend: L layers, S slots, P positions, N decoding sequences, T packed tokens, H query heads,
K key/value heads, G = H/K queries that share a key, C width of a head, W widest position of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from windlass.spec.shape import Gpt2Shape, LlamaShape

FIRST_SLOTS = 4
FIRST_POSITIONS = 128


@dataclass(frozen=True)
class Chunk:
    """Tokens of a prompt that are computed in this step: `length` of them, from position `start`."""

    slot: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class SlottedCache:
    """The KeyValues (windlass.models.language) of an engine."""

    def __init__(
        self, shape: LlamaShape | Gpt2Shape, *, slots: int, device: torch.device, dtype: torch.dtype
    ):
        self._slots, self._context = slots, shape.context
        self._layers, self._head_width = shape.layers, shape.head_width
        self._kv_heads = shape.kv_heads if isinstance(shape, LlamaShape) else shape.heads
        self._device, self._dtype = device, dtype
        self._kv_L2SKPC = self._zeros(0, 0)
        self._chunks: Sequence[Chunk] = ()
        self._masks: list[Tensor | None] = []
        self.reset()

    @property
    def bytes(self) -> int:
        return self._kv_L2SKPC.nbytes

    def reset(self) -> None:
        """Give memory back; whatever was kept is gone."""
        self._kv_L2SKPC = self._zeros(min(self._slots, FIRST_SLOTS), min(self._context, FIRST_POSITIONS))

    @torch.inference_mode()
    def exchange(self, one: int, one_length: int, two: int, two_length: int) -> None:
        """Let two slots change places; only the given lengths are kept."""
        kept = self._kv_L2SKPC[:, :, one, :, :one_length].clone()
        self._kv_L2SKPC[:, :, one, :, :two_length] = self._kv_L2SKPC[:, :, two, :, :two_length]
        self._kv_L2SKPC[:, :, two, :, :one_length] = kept

    def begin(self, positions: Sequence[int], chunks: Sequence[Chunk]) -> None:
        """Say what the packed tokens of the coming step are: the positions of the tokens that slots
        0, 1, 2... decode, and the chunks of prompts after them.
        """
        ends = [*(p + 1 for p in positions), *(chunk.end for chunk in chunks)]
        slots = [len(positions), *(chunk.slot + 1 for chunk in chunks)]
        self._reserve(max(slots), max(ends))
        self._chunks = chunks
        self._masks = [self._chunk_mask(chunk) for chunk in chunks]
        self._slots_N = torch.arange(len(positions), device=self._device)
        self._positions_N = torch.tensor(positions, dtype=torch.long, device=self._device)
        self._width = max((p + 1 for p in positions), default=0)
        ahead_NW = torch.arange(self._width, device=self._device) > self._positions_N[:, None]
        mask_NW = torch.zeros(ahead_NW.shape, dtype=self._dtype, device=self._device)
        self._mask_N11W = mask_NW.masked_fill_(ahead_NW, float("-inf"))[:, None, None]

    def attend(self, layer: int, q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
        """Store keys and values of the packed tokens (B = 1), then mix what each may see."""
        q_HTC, new_2KTC = q_BHTC[0], torch.stack((k_BKTC[0], v_BKTC[0]))
        decoding = len(self._slots_N)
        parts = [self._decode(layer, q_HTC[:, :decoding], new_2KTC[:, :, :decoding])] if decoding else []
        at = decoding
        for chunk, mask in zip(self._chunks, self._masks, strict=True):
            rows = slice(at, at + chunk.length)
            parts.append(self._prefill(layer, chunk, mask, q_HTC[:, rows], new_2KTC[:, :, rows]))
            at += chunk.length
        return torch.cat(parts, dim=1)[None]

    def _decode(self, layer: int, q_HNC: Tensor, new_2KNC: Tensor) -> Tensor:
        """One token of every decoding sequence. Queries that share a key form the rows of one product."""
        kv_2SKPC = self._kv_L2SKPC[layer]
        kv_2SKPC[:, self._slots_N, :, self._positions_N] = new_2KNC.permute(2, 0, 1, 3)
        keys_NKWC, values_NKWC = kv_2SKPC[:, : len(self._slots_N), :, : self._width]
        q_NKGC = q_HNC.unflatten(0, (self._kv_heads, -1)).permute(2, 0, 1, 3)  # type: ignore[no-untyped-call]
        y_NKGC = F.scaled_dot_product_attention(q_NKGC, keys_NKWC, values_NKWC, attn_mask=self._mask_N11W)
        return y_NKGC.permute(1, 2, 0, 3).flatten(0, 1)

    def _prefill(
        self, layer: int, chunk: Chunk, mask: Tensor | None, q_HTC: Tensor, new_2KTC: Tensor
    ) -> Tensor:
        kv_2KPC = self._kv_L2SKPC[layer, :, chunk.slot]
        kv_2KPC[:, :, chunk.start : chunk.end] = new_2KTC
        keys_KPC, values_KPC = kv_2KPC[:, :, : chunk.end]
        y_1HTC = F.scaled_dot_product_attention(
            q_HTC[None], keys_KPC[None], values_KPC[None],
            attn_mask=mask, is_causal=mask is None, enable_gqa=len(q_HTC) != self._kv_heads,
        )  # fmt: skip
        return y_1HTC[0]

    def _chunk_mask(self, chunk: Chunk) -> Tensor | None:
        """Say what a chunk may see; a first chunk needs no tensor for it."""
        if chunk.start == 0:
            return None
        seen = torch.ones(chunk.length, chunk.end, dtype=torch.bool, device=self._device)
        return seen.tril(chunk.start)

    def _reserve(self, slots: int, positions: int) -> None:
        held_slots, held_positions = self._kv_L2SKPC.shape[2], self._kv_L2SKPC.shape[4]
        if slots <= held_slots and positions <= held_positions:
            return
        slots = held_slots if slots <= held_slots else min(self._slots, max(slots, 2 * held_slots))
        if positions <= held_positions:
            positions = held_positions
        else:
            positions = min(self._context, max(positions, 2 * held_positions))
        old = self._kv_L2SKPC
        self._kv_L2SKPC = self._zeros(slots, positions)
        self._kv_L2SKPC[:, :, :held_slots, :, :held_positions] = old

    def _zeros(self, slots: int, positions: int) -> Tensor:
        # Zeros, because a masked position still takes part in a product: 0 times not-a-number is not 0.
        size = (self._layers, 2, slots, self._kv_heads, positions, self._head_width)
        return torch.zeros(size, dtype=self._dtype, device=self._device)
