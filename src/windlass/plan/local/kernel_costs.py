"""The parts of one pass of our trainer over a micro-batch: its products, passes over memory and exchanges.

Input: sizes, and how processes divide them. Output: seconds by the measured rates, of computing and of
exchanging apart. Numbers of passes over memory are counted in models/decoder.py, forward and twice that
backward; what they leave out is in the curves that overhead.py draws from parts to measured wholes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.plan.local.profile import BlockTime
from windlass.plan.local.rates import MachineRates
from windlass.spec.shape import DecoderShape, MlpShape, Network

STREAM_PASSES, INNER_PASSES, SCORE_PASSES = 32, 5, 4
"""Over the residual stream (norms, rotations, sums), over the inner features, and over scores of words."""
MIX_PASSES = 4
"""Over the vectors of a window side by side: written and read, forward and backward (models/mlp.py)."""
LOSS_CHUNK_TOKENS = 512
"""models/loss.py: CHUNK_TOKENS."""
VALUE_BYTES = 4
Way = Literal["sharded", "tp", "cp"]
"""The ways in which processes divide a pass and exchange data for it."""


@dataclass(frozen=True)
class Dims:
    """What decides the time of a pass."""

    width: int
    attention_width: int
    kv_width: int
    heads: int
    ffn_width: int
    gated: bool
    vocabulary: int
    tied: bool
    context: int
    sees_all: bool = False
    """Both sides, as bert does: twice the attention of a causal model."""
    mixed_width: int = 0
    """Vectors of the last tokens side by side, which an mlp multiplies once; it has no attention."""

    @property
    def products(self) -> tuple[tuple[int, int, bool], ...]:
        """Inputs and outputs of the products of a layer, and whether tensor parallel divides the inputs."""
        attention = ((self.width, self.attention_width, False), (self.width, self.kv_width, False))
        ffn = ((self.width, self.ffn_width, False),) * (2 if self.gated else 1)
        back = ((self.attention_width, self.width, True), (self.ffn_width, self.width, True))
        if self.mixed_width:
            return (*ffn, back[1])
        return (*attention, attention[1], *ffn, *back)

    @property
    def layer_weights(self) -> int:
        return sum(inputs * outputs for inputs, outputs, _ in self.products)

    @property
    def end_weights(self) -> int:
        return self.width * (self.vocabulary * (1 if self.tied else 2) + self.mixed_width)


def dims_of(shape: Network) -> Dims:
    if isinstance(shape, MlpShape):
        return _dims_of_mlp(shape)
    decoder = shape if isinstance(shape, DecoderShape) else None
    active = 0 if decoder is None else decoder.experts_per_token * decoder.expert_width + decoder.shared_width
    return Dims(
        width=shape.width,
        attention_width=shape.attention_width,
        kv_width=decoder.kv_width if decoder else shape.width,
        heads=shape.heads,
        ffn_width=active or shape.ffn_width,
        gated=decoder is not None and decoder.gated,
        vocabulary=shape.vocabulary,
        tied=decoder is None or decoder.tied,
        context=shape.context,
        sees_all=shape.family == "bert",
    )


def _dims_of_mlp(shape: MlpShape) -> Dims:
    return Dims(
        width=shape.width,
        attention_width=0,
        kv_width=0,
        heads=1,
        ffn_width=shape.ffn_width,
        gated=False,
        vocabulary=shape.vocabulary,
        tied=True,
        context=shape.context,
        mixed_width=shape.window * shape.width,
    )


def dims_of_block(block: BlockTime) -> Dims:
    """Of a model that the probe measured: a Llama with as many key heads as query heads, tied."""
    return Dims(
        width=block.width,
        attention_width=block.width,
        kv_width=block.width,
        heads=block.heads,
        ffn_width=block.ffn_width,
        gated=True,
        vocabulary=block.vocabulary,
        tied=True,
        context=block.context,
    )


@dataclass(frozen=True)
class ProcessShare:
    """What one process has of a micro-batch and of the model."""

    sequences: int
    tp: int = 1
    sharded: int = 1
    cp: int = 1
    sequence_parallel: bool = True

    def tokens(self, dims: Dims) -> float:
        return self.sequences * dims.context / self.cp


def layer_parts_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> float:
    """What a process computes of one layer, forward and backward."""
    tokens, tp = share.tokens(dims), share.tp
    seconds = sum(
        rates.product_s(tokens, inputs / tp if by_inputs else inputs, outputs if by_inputs else outputs / tp)
        for inputs, outputs, by_inputs in dims.products
    )
    passes = STREAM_PASSES
    if dims.mixed_width:
        passes //= 2
    else:
        heads = share.sequences * dims.heads / tp
        mixing = rates.attention_s(heads, dims.context, dims.attention_width / dims.heads)
        seconds += mixing * (2 if dims.sees_all else 1) / share.cp
    apart = tp if share.sequence_parallel else 1
    seconds += passes * rates.stream_s(tokens * dims.width / apart)
    return seconds + INNER_PASSES * rates.stream_s(tokens * dims.ffn_width / tp)


def ends_parts_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> float:
    """Embedding, last norm and the loss, a chunk of tokens at a time, forward and backward."""
    tokens, words = share.tokens(dims), dims.vocabulary / share.tp
    chunk = min(tokens, LOSS_CHUNK_TOKENS)
    scores = rates.product_s(chunk, dims.width, words) + SCORE_PASSES * rates.stream_s(chunk * words)
    seconds = tokens / chunk * scores + STREAM_PASSES / 4 * rates.stream_s(tokens * dims.width)
    if dims.mixed_width:
        seconds += rates.product_s(tokens, dims.mixed_width, dims.width)
        seconds += MIX_PASSES * rates.stream_s(tokens * dims.mixed_width)
    return seconds + 2 * rates.stream_s(words * dims.width)


def layer_exchanges_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> dict[Way, float]:
    """What processes that divide a layer exchange, forward and backward, by the way in which they do.

    Sharded weights are borrowed for both passes and their gradients dealt out (Rajbhandari et al. 2019,
    arXiv:1910.02054, section 7). Tensor parallel exchanges the stream twice each way (Korthikanti et al.
    2022, arXiv:2205.05198, section 4.2.2). A divided sequence passes keys and values round.
    """
    found: dict[Way, float] = {}
    stream = VALUE_BYTES * share.tokens(dims) * dims.width
    if share.sharded > 1:
        weights = VALUE_BYTES * dims.layer_weights / share.tp
        found["sharded"] = 2 * rates.exchange_s("gather", weights) + rates.exchange_s("scatter", weights)
    if share.tp > 1 and share.sequence_parallel:
        found["tp"] = 4 * (rates.exchange_s("gather", stream) + rates.exchange_s("scatter", stream))
    elif share.tp > 1:
        found["tp"] = 4 * rates.exchange_s("sum", stream)
    if share.cp > 1:
        keys = VALUE_BYTES * share.tokens(dims) * 2 * dims.kv_width * share.cp
        found["cp"] = 2 * rates.exchange_s("gather", keys) + rates.exchange_s("scatter", keys)
    return found


def ends_exchanges_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> dict[Way, float]:
    """The same for the ends."""
    found: dict[Way, float] = {}
    tokens = share.tokens(dims)
    stream, chunks = VALUE_BYTES * tokens * dims.width, tokens / min(tokens, LOSS_CHUNK_TOKENS)
    if share.sharded > 1:
        weights = VALUE_BYTES * dims.end_weights / share.tp
        found["sharded"] = rates.exchange_s("gather", weights) + rates.exchange_s("scatter", weights)
    if share.tp > 1:
        found["tp"] = 2 * (rates.exchange_s("gather", stream) + rates.exchange_s("scatter", stream))
        found["tp"] += 2 * chunks * rates.exchange_s("sum", VALUE_BYTES * LOSS_CHUNK_TOKENS)
    return found
