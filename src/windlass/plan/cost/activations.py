"""Activations that a forward pass keeps for the backward pass, and how many passes a stage holds at a time.

Tensors are counted as in Korthikanti et al. 2022 (arXiv:2205.05198, sections 4 and 5), for gated and plain
feed-forwards, grouped keys, experts, and attention that stores its scores or not: inputs of every norm,
product and activation, in the precision of computing. Without sequence parallelism norms and their results
are whole on every device of a tensor-parallel group; all else is divided by it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from windlass.plan.cost.fitted_memory import MemoryDefaults
from windlass.plan.cost.step_config import Sizes, TrainingStep

ROTATED = 64
"""Width of the part of a head that latent attention rotates, beside `head_width` (arXiv:2405.04434)."""
EIGHT_BITS = ("float8", "float4")
SCORE_BYTES = 5
"""Of one score: softmax, its dropout mask, and the result (arXiv:2205.05198, section 4.1)."""


class PipelineStage(NamedTuple):
    """A place in the pipeline."""

    layers: int
    embedding: bool
    head: bool
    passes: float
    """Micro-batches whose activations it holds at the same time, all its layers counted."""


def stages(case: TrainingStep, habits: MemoryDefaults) -> list[PipelineStage]:
    """Return the stages of which one needs most memory: the first, the second, and that of the head."""
    if case.pp == 1:
        return [PipelineStage(case.sizes.layers, True, True, 1)]
    counts, head = _counts(case, habits)
    found = [PipelineStage(counts[0], True, head == 0, _passes(case, 0))]
    if head > 1:
        found.append(PipelineStage(counts[1], False, False, _passes(case, 1)))
    if head > 0:
        found.append(PipelineStage(counts[head], False, True, _passes(case, head)))
    return found


def cannot_run(case: TrainingStep, habits: MemoryDefaults) -> bool:
    """Whether the step is impossible: a stage has nothing to compute, or too few micro-batches.

    The loss alone is enough for a stage.
    """
    if case.pp == 1:
        return False
    counts, head = _counts(case, habits)
    if habits.refuses_few and case.micro_batches < case.pp - 1:
        return True
    return head < case.pp - 2 or 0 in counts[:head]


def kept_bytes(case: TrainingStep, habits: MemoryDefaults) -> float:
    """Return the bytes that a token leaves in a layer on a device, by the recomputation policy."""
    whole = layer_bytes(case, habits)
    if case.recompute != "full":
        return whole
    unit, entry = unit_bytes(case), boundary_bytes(case)
    if habits.every_second and case.recompute_share == 0.5:
        sizes = case.sizes
        inner = sizes.heads * sizes.head_width + sizes.kv_heads * sizes.head_width + _ffn_width(sizes)
        return 2 * entry + unit * inner / case.tp
    return case.recompute_share * entry + (1 - case.recompute_share) * whole


def layer_bytes(case: TrainingStep, habits: MemoryDefaults, *, recomputed: bool = False) -> float:
    """Return the bytes that one token leaves in one layer when only what "selective" drops is dropped.

    A layer that is being recomputed has its scores too.
    """
    sizes, unit, boundary, ffn = case.sizes, unit_bytes(case), boundary_bytes(case), _ffn_width(case.sizes)
    total = 4 * boundary + _attention_bytes(case, habits)
    total += unit * (habits.ffn_copies if sizes.gated else 2) * ffn / case.tp
    total += habits.whole_inputs * (unit * sizes.width - boundary)
    if not case.attention.startswith("flash") and (recomputed or case.recompute != "selective"):
        total += SCORE_BYTES * unit / 2 * sizes.heads * case.sequence / case.tp
    if habits.stores_float8 and case.precision in EIGHT_BITS:  # one byte instead of two
        total -= 2 * boundary / unit + ffn / case.tp
    if sizes.experts:  # tokens sent to experts, and what comes back
        total += 2 * sizes.top_k * boundary
    return total


def working_bytes(case: TrainingStep, habits: MemoryDefaults) -> float:
    """Return the bytes that one token needs in the layer being computed, beyond those kept.

    Gradients of its largest tensors; and with sequence parallelism the whole input of a product, its gradient
    and the result before it is divided, which no device keeps (arXiv:2205.05198, section 4.2.2).
    """
    gathered = 3 * unit_bytes(case) * case.sizes.width if case.sequence_parallel and case.tp > 1 else 0.0
    return gathered + layer_bytes(case, habits, recomputed=True)


def boundary_bytes(case: TrainingStep) -> float:
    """Return the size of one token between layers, on one device."""
    return unit_bytes(case) * case.sizes.width / (case.tp if case.sequence_parallel else 1)


def unit_bytes(case: TrainingStep) -> int:
    """Return the size of one number in the precision of activations; float8 is for products alone."""
    return 4 if case.precision == "float32" else 2


def _attention_bytes(case: TrainingStep, habits: MemoryDefaults) -> float:
    """Of queries, keys and values, of what their rotation stores again, and of the result."""
    sizes, unit = case.sizes, unit_bytes(case)
    query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    if sizes.latent is not None:
        key = sizes.heads * (sizes.head_width + ROTATED)
        latent = sum(sizes.latent) + ROTATED
        return unit * (latent + (2 * key + 2 * query) / case.tp)
    return unit * (2 * query + 2 * key + habits.copies * (query + key)) / case.tp


def _ffn_width(sizes: Sizes) -> float:
    """Of all feed-forwards that one token meets in a layer, on average over the layers."""
    if not sizes.experts:
        return sizes.ffn_width
    sparse = sizes.layers - sizes.dense_layers
    routed = sizes.top_k * sizes.expert_width + sizes.shared_width
    return (sparse * routed + sizes.dense_layers * sizes.ffn_width) / sizes.layers


def _passes(case: TrainingStep, stage: int) -> float:
    """Return how many micro-batches a stage holds (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

    One forward, one backward: a stage starts as many as there are stages behind it, and one. With several
    chunks of layers on a device it starts twice as many, and one chunk after another for all.
    """
    behind = case.pp - stage - 1
    if case.virtual == 1:
        return min(behind + 1, case.micro_batches)
    chunks = 2 * behind + (case.virtual - 1) * case.pp + 1
    return min(chunks, case.micro_batches * case.virtual) / case.virtual


def _counts(case: TrainingStep, habits: MemoryDefaults) -> tuple[list[int], int]:
    sizes, pp = case.sizes, case.pp
    if habits.split == "greedy":
        head = sizes.vocabulary * sizes.width
        return _greedy(sizes.layers, sizes.active_layer_weights, head, pp)
    if sizes.layers % pp and (sizes.layers + 2) % pp == 0:
        each = (sizes.layers + 2) // pp  # embedding and head count as a layer each
        return [each - 1, *[each] * (pp - 2), each - 1], pp - 1
    each, more = divmod(sizes.layers, pp)
    return [each + (stage < more) for stage in range(pp)], pp - 1


@lru_cache(maxsize=1024)
def _greedy(layers: int, layer: int, head: int, pp: int) -> tuple[list[int], int]:
    """Give each stage layers until its share of the cost is passed, the head being one more (nanotron)."""
    total, stage, counts = layers * layer + head, 0, [0] * pp
    for place in range(1, layers + 1):
        counts[stage] += 1
        if place * layer > total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return counts, stage
