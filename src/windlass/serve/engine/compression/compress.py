"""Compresses a model: `python -m windlass.serve.engine.compression.compress SOURCE TARGET ...`.

Input: a model directory, and a built corpus to calibrate on if there is one. Output: a directory whose
matrices are bfloat16 (then any Hugging Face reader can load it), int8 or int4 (docs/formats/quantised.md),
its manifest last; events on standard output, the last of them {"done": ...} or {"error": ...}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.files import COMPANIONS, CONFIG, SINGLE, read_config
from windlass.models.huggingface import load_model, save_weights
from windlass.models.mmap_tensors import narrowed
from windlass.models.quantised import BITS, FIELD, FORMAT, METHOD
from windlass.models.tensors import LazyTensor, write_file
from windlass.models.weights import ModelWeights, load_weights
from windlass.serve.engine.compression.calibrate import Moments, sampled_windows, second_moments
from windlass.serve.engine.native import missing_feature
from windlass.serve.engine.quantise import quantise
from windlass.spec.config import config_from_shape, special_tokens_of
from windlass.spec.errors import BadInput
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

MAX_MOMENT_BYTES = 1 << 30
HEAD_BITS = 8
"""Four bits in the output matrix would cost more perplexity than in all others together."""
TABLES = ("positions.weight",)
"""Matrices that are only looked up: they cost no time, and little memory."""
ROUTERS = (".router.weight", ".shared_gate.weight")
"""Small matrices on which depends which experts compute."""


def compress(source: Path, target: Path, precision: str, corpus: Path | None) -> dict[str, Any]:
    """Write the compressed model; the target appears complete, with its manifest, or not at all."""
    weights = load_weights(source)
    _refuse(weights, source, precision)
    writer = DirectoryWriter(StoreDir(target))
    special_tokens = special_tokens_of(read_config(source))
    if precision == "bfloat16":
        save_weights(weights.shape, _Bfloat16(weights), writer, special_tokens=special_tokens)
    else:
        write_file(_tensors(weights, source, precision, corpus), SINGLE, writer, {"format": METHOD})
        config = config_from_shape(weights.shape, dtype="float32", special_tokens=special_tokens)
        config[FIELD] = {"quant_method": METHOD, "format": FORMAT, "weights": precision}
        writer.write(CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    for name in COMPANIONS:
        if (source / name).is_file():
            writer.write(name, (source / name).read_bytes())
    shape = weights.shape.model_dump(mode="json")
    facts = {"family": weights.shape.family, "parameters": weights.shape.parameters, "shape": shape}
    manifest = writer.commit({"kind": "model", "model": facts, "family": weights.shape.family})
    return {**facts, "was": weights.precision, "weights": precision, "bytes": manifest.bytes}


def _refuse(weights: ModelWeights, source: Path, precision: str) -> None:
    if weights.precision in BITS:
        raise BadInput(
            f"{source}: already {weights.precision}; compressing it again would lose more precision",
            hint="compress the version that it was made from; `windlass models show` names it",
        )
    if weights.shape.family in ("bert", "mlp") and precision in BITS:
        raise BadInput(
            f"{source}: {weights.shape.family} models are served in floating point only",
            hint="--weights bfloat16 halves them; decoders can be int8 and int4",
        )
    shape = weights.shape
    missing = missing_feature(shape) if isinstance(shape, DecoderShape) else None
    if missing is not None and precision in BITS:
        raise BadInput(
            f"{source}: the native engine, which computes {precision}, does not compute {missing} ="
            f" {getattr(shape, missing)!r} (family {shape.family})",
            hint="--weights bfloat16 halves the model",
        )


class _Bfloat16:
    """The weights of a directory, rounded as they are read."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights

    def dtype(self, _: str) -> torch.dtype:
        return torch.bfloat16

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.sizes[name]

    def read(self, name: str) -> Tensor:
        return _bfloat16(self._weights.get(name).widened())


def _tensors(
    weights: ModelWeights, source: Path, precision: str, corpus: Path | None
) -> dict[str, LazyTensor]:
    """Quantise matrix after matrix; only one original and the small results are in memory."""
    made: dict[str, Tensor] = {}
    matrices = [name for name, size in weights.sizes.items() if _is_quantised(weights, name, size)]
    moments = _moments(weights, source, matrices, corpus)
    for done, (name, moments_KK) in enumerate(moments, start=1):
        bits = HEAD_BITS if name == weights.head_name else BITS[precision]
        values = weights.get(name).widened()
        if not np.isfinite(values).all():
            raise BadInput(
                f"{source}: '{name}' holds numbers that are not finite", hint="it did not train well"
            )
        matrix = quantise(values, bits, moments_KK)
        made[f"{name}.q"], made[f"{name}.scale"] = torch.from_numpy(matrix.q), torch.from_numpy(matrix.scale)
        emit(_progress("quantise", done, len(matrices), "matrices"))
    for name in weights.names():
        if name not in matrices:
            made[name] = _kept(weights, name)
    return {
        name: LazyTensor(tensor.dtype, tuple(tensor.shape), tensor.detach) for name, tensor in made.items()
    }


def _is_quantised(weights: ModelWeights, name: str, size: tuple[int, ...]) -> bool:
    looked_up = name in TABLES or (name == "embedding.weight" and weights.head_name != name)
    return len(size) == 2 and not looked_up and not name.endswith(ROUTERS)


def _kept(weights: ModelWeights, name: str) -> Tensor:
    """Return a weight that is not quantised: tables in two bytes, vectors and routers in four."""
    values = weights.get(name).widened()
    is_table = values.ndim == 2 and not name.endswith(ROUTERS)
    return _bfloat16(values) if is_table else torch.from_numpy(values.copy())


def _bfloat16(values: np.ndarray) -> Tensor:
    return torch.from_numpy(narrowed(values).view(np.int16)).view(torch.bfloat16)


def _moments(
    weights: ModelWeights, source: Path, matrices: list[str], corpus: Path | None
) -> Iterator[tuple[str, Moments | None]]:
    """Yield every matrix with the second moments of its inputs, measured for as many at a time as fit.

    The head is not calibrated: at 8 bits calibration makes no measurable difference.
    """
    if corpus is not None:
        tokens_BT = sampled_windows(load_corpus(corpus).train, weights.shape.context)
        model = load_model(source, dtype=torch.float32).eval()
        for names in _batches(weights, [name for name in matrices if name != weights.head_name]):
            emit(_progress("calibrate", matrices.index(names[0]), len(matrices), "matrices"))
            yield from second_moments(model, tokens_BT, names).items()
    yield from ((name, None) for name in matrices if corpus is None or name == weights.head_name)


def _batches(weights: ModelWeights, matrices: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    held = 0
    for name in matrices:
        needed = weights.sizes[name][1] ** 2 * np.dtype(np.float64).itemsize
        if batch and held + needed > MAX_MOMENT_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += needed
    yield batch


def _progress(stage: str, done: int, total: int, unit: str) -> dict[str, Any]:
    return {"event": "progress", "stage": stage, "done": done, "total": total, "unit": unit}


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.serve.engine.compression.compress")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--weights", choices=("bfloat16", *BITS), required=True)
    parser.add_argument("--calibrate", type=Path, metavar="CORPUS")
    args: argparse.Namespace = parser.parse_args(argv)
    emit({"done": compress(args.source, args.target, args.weights, args.calibrate)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
