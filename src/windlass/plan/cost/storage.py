"""How many bytes a run stores and sends, and how long a checkpoint takes.

A checkpoint holds the weights that the optimizer changes and Adam's two moments, all in float32; in mixed
precision also the weights that are computed with. For 16 bits that is 14 bytes a weight: 2.3 TiB for the 176
billion of BLOOM, as its makers say (bigscience-workshop/bigscience, train/tr11-176B-ml/README.md).

What a device sends in a step, for a ring of n devices and b bytes that each ends up with or began with:
all-reduce 2 b (n-1)/n, reduce-scatter and all-gather half of that each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from windlass.plan.cost.step_config import Precision, TrainingStep
from windlass.spec.errors import BadInput

COMPUTED_BYTES: dict[Precision, float] = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "float4": 0.5,
}  # fmt: skip
OPTIMIZED_BYTES = 4 + 4 + 4
SENT_BYTES = 2
"""Activations cross between devices in 16 bits, below them too: what is 8-bit are matrix products."""
TEXT_BYTES_PER_TOKEN = 3.94
"""Of English with a vocabulary of 128 thousand (Llama 3, arXiv:2407.21783, section 3.2); with 32 thousand
3.17. Other text has other figures."""
SMALL_VOCABULARY = 1 << 16


@dataclass(frozen=True)
class StorageNeeds:
    """What a run needs besides its devices."""

    checkpoint_bytes: float
    kept_bytes: float
    corpus_bytes: float
    network_bytes_per_step: float
    """Sent by one device."""
    write_s: float
    """From the beginning of a checkpoint until it is whole."""
    load_s: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def storage(
    case: TrainingStep,
    *,
    tokens: float,
    steps: int,
    store_bytes_s: float,
    keep: int = 3,
    every_steps: int | None = None,
    text_bytes: float | None = None,
) -> StorageNeeds:
    """Return the bytes of a run; `keep` newest checkpoints stay, and one of every `every_steps` for good."""
    size = checkpoint_bytes(case.sizes.parameters, case.precision)
    return StorageNeeds(
        checkpoint_bytes=size,
        kept_bytes=size * kept_checkpoints(steps, keep, every_steps),
        corpus_bytes=corpus_bytes(tokens, case.sizes.vocabulary, text_bytes),
        network_bytes_per_step=network_bytes(case),
        write_s=transfer_seconds(size, store_bytes_s),
        load_s=transfer_seconds(size, store_bytes_s),
    )


def checkpoint_bytes(parameters: float, precision: Precision) -> float:
    """Return the size of a training checkpoint; weights alone are `served_bytes`."""
    copy = 0.0 if precision == "float32" else max(2.0, COMPUTED_BYTES[precision])
    return parameters * (OPTIMIZED_BYTES + copy)


def served_bytes(parameters: float, bits: float = 16, zeros: float = 0.0) -> float:
    """Return the weights as a server holds them; zeros are left out, for a bit a weight that says where."""
    return parameters * (1 - zeros) * bits / 8 + (parameters / 8 if zeros else 0.0)


def kept_checkpoints(steps: int, keep: int, every_steps: int | None) -> int:
    """Return how many checkpoints are kept at the end."""
    return keep + (steps // every_steps if every_steps else 0)


def corpus_bytes(tokens: float, vocabulary: int, text_bytes: float | None = None) -> float:
    """Return tokens as the shards hold them (two bytes each if the vocabulary allows) and their text."""
    text = tokens * TEXT_BYTES_PER_TOKEN if text_bytes is None else text_bytes
    return tokens * (2 if vocabulary <= SMALL_VOCABULARY else 4) + text


def transfer_seconds(size: float, bytes_s: float) -> float:
    """Return the seconds to write `size` bytes; `bytes_s` is the bandwidth for all writers together."""
    if not bytes_s > 0:
        raise BadInput(
            f"plan: the store's bandwidth must be positive, got {bytes_s} bytes/s", hint="write it like '2GB'"
        )
    return size / bytes_s


def network_bytes(case: TrainingStep) -> float:
    """Return the bytes that one device sends in a step, over all links."""
    return gradient_bytes(case) + activation_bytes(case)


def gradient_bytes(case: TrainingStep) -> float:
    """Return the bytes that data parallelism sends: gradients once around, with full sharding weights twice
    more (Rajbhandari et al. 2020, arXiv:1910.02054, section 7: 2 and 3 times the weights).
    """
    sizes = case.sizes
    in_experts = (sizes.layers - sizes.dense_layers) * sizes.experts * sizes.ffn_weights(sizes.expert_width)
    held = (sizes.parameters - in_experts * (1 - 1 / case.ep)) / (case.tp * case.pp)
    width = COMPUTED_BYTES[case.precision]
    around = _ring(case.dp * case.cp)
    if case.sharding != "full":
        return 2 * held * width * around
    within = _ring(case.shards)
    return 3 * held * width * within + 2 * held / case.shards * width * _ring(
        case.dp * case.cp // case.shards
    )


def activation_bytes(case: TrainingStep) -> float:
    """Return the bytes that the other axes send.

    Tensors: four all-reduces a layer (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Pipelines: the
    stream forth and back at every stage boundary (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
    Context: keys and values once around, and twice with their gradients (Liu et al. 2023, arXiv:2310.01889).
    Experts: to them and back, in both passes (Lepikhin et al. 2020, arXiv:2006.16668).
    """
    sizes = case.sizes
    stream = case.micro_batch * case.sequence / case.cp * sizes.width * SENT_BYTES
    layers = sizes.layers / case.pp
    tensor = 4 * layers * 2 * stream * _ring(case.tp)
    boundaries = (
        2 * case.virtual * stream / (case.tp if case.sequence_parallel else 1) if case.pp > 1 else 0.0
    )
    keys = 2 * sizes.kv_heads * sizes.head_width / sizes.width / case.tp
    context = 3 * layers * keys * stream * (case.cp - 1)
    sparse = layers * (1 - sizes.dense_layers / sizes.layers) if sizes.experts else 0.0
    experts = 4 * sparse * sizes.top_k * stream / case.tp * _ring(case.ep)
    return case.micro_batches * (tensor + boundaries + context + experts)


def _ring(devices: int) -> float:
    return (devices - 1) / devices
