"""LoRA adapters: small matrices that change a model without a copy of it.

Input: a directory as PEFT writes it (adapter_config.json, adapter_model.safetensors) and the shape of the
model that it belongs to. Output: for every matrix W that it changes a pair (A, B), by which W x becomes
W x + scale * B (A x). A setting that changes the result is either supported or refused.

Legend: r rank, K columns of the matrix (what it takes), N its rows (what it gives).

`python -m windlass.serve.engine.adapters SOURCE BASE TARGET` checks an adapter against a model directory
and writes it, with a manifest, for the registry.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import check_manifest, listed, read_config
from windlass.models.mmap_tensors import MappedTensors, widened
from windlass.models.names import Pair, naming_of
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import BertShape, DecoderShape
from windlass.spec.shape import Shape as AnyShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_RANK = 256
PREFIX = "base_model.model."

PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    "target_parameters": (None, []),
}
"""Fields that change what is computed, and the values that mean plain LoRA."""

_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_SPARSE = re.compile(r"\.ffn\.(experts|router|shared|shared_gate)\.")
"""Matrices of layers with experts, to which no runner adds a delta: they see tokens in another order."""

Matrix = NDArray[np.float32]
Shape = DecoderShape | BertShape


@dataclass(frozen=True)
class Adapter:
    """The matrices of an adapter, by the names of the weights in our models."""

    name: str
    rank: int
    scale: float
    matrices: dict[str, tuple[Matrix, Matrix]]
    """For each weight A (r, K) and B (N, r)."""

    @property
    def bytes(self) -> int:
        return sum(down.nbytes + up.nbytes for down, up in self.matrices.values())


def load_adapter(directory: Path, shape: AnyShape, name: str = "") -> Adapter:
    """Read an adapter and check every matrix against the shape of its model."""
    if not isinstance(shape, Shape):
        raise BadInput(
            f"{directory}: LoRA changes the matrices of a transformer; the model is of family {shape.family}",
            hint="decoders and bert models can have adapters",
        )
    config = _read_config(directory)
    check_manifest(directory)
    rank = int(config["r"])
    sizes = shape.weight_sizes()
    where = str(directory / WEIGHTS)
    matrices: dict[str, tuple[Matrix, Matrix]] = {}
    for ours, down, up in _pairs(directory, shape):
        rows, columns = sizes[ours]
        _check_size(where, f"{ours}, A", down, (rank, columns))
        _check_size(where, f"{ours}, B", up, (rows, rank))
        matrices[ours] = np.ascontiguousarray(down), np.ascontiguousarray(up)
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    return Adapter(name or directory.name, rank, float(config["lora_alpha"]) / root, matrices)


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{directory}: no {CONFIG}", hint=f"an adapter is {CONFIG} and {WEIGHTS}") from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path}: holds a {type(config).__name__}, not a table of fields")
    for field, allowed in PLAIN.items():
        if config.get(field, allowed[0]) not in allowed:
            hint = (
                f"only plain LoRA is computed, where it is {json.dumps(allowed[0])}; merge this one instead"
            )
            raise BadInput(f"{path}: {field} is {json.dumps(config[field])[:80]}", hint=hint)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise BadInput(f"{path}: r is {rank}", hint=f"a rank is a whole number from 1 to {MAX_RANK}")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise BadInput(f"{path}: lora_alpha is {alpha}", hint="it must be a number")
    return config


def _pairs(directory: Path, shape: Shape) -> Iterator[tuple[str, Matrix, Matrix]]:
    """Yield our name, A and B of every matrix; one of PEFT's may be several of ours, joined by rows."""
    if not (directory / WEIGHTS).exists():
        raise NotFound(f"{directory}: no {WEIGHTS}", hint="adapters are read as safetensors, never as pickle")
    tensors = MappedTensors(directory, [WEIGHTS])
    targets = {
        pair.theirs.removesuffix(".weight"): pair
        for pair in naming_of(shape).pairs(shape)
        if pair.ours[0].startswith("layers.") and len(pair.sizes[0]) == 2 and not _SPARSE.search(pair.ours[0])
    }
    sides = _sides(tensors, targets, str(directory / WEIGHTS))
    for module, (down, up) in sides.items():
        pair = replace(targets[module], transposed=False)
        if len(up) != sum(size[0] for size in pair.sizes):
            yield pair.ours[0], down, up
            continue
        for which, name in enumerate(pair.ours):
            yield name, down, pair.part(up, which).reshape(pair.sizes[which][0], -1)


def _sides(tensors: MappedTensors, targets: dict[str, Pair], where: str) -> dict[str, tuple[Matrix, Matrix]]:
    """Collect A and B of every module; refuse tensors that belong to no matrix of the model."""
    found: dict[str, dict[str, Matrix]] = {}
    unknown: list[str] = []
    for name in tensors.names():
        match = _TENSOR.fullmatch(name.removeprefix(PREFIX))
        if match is None or match["module"] not in targets:
            unknown.append(name)
            continue
        values = widened(tensors.read(name))
        if not np.isfinite(values).all():
            raise Damaged(f"{where}: tensor '{name}' holds values that are not finite")
        found.setdefault(match["module"], {})[match["side"]] = values
    if unknown:
        raise BadInput(
            f"{where}: tensors for weights that the model does not have or that cannot be adapted: "
            f"{listed(unknown)}",
            hint="an adapter may change matrices inside the layers, but no experts, for a model of the same"
            " family",
        )
    halves = [module for module, sides in found.items() if len(sides) != 2]
    if halves or not found:
        raise Damaged(f"{where}: " + (f"one side is missing: {listed(halves)}" if halves else "is empty"))
    return {module: (sides["A"], sides["B"]) for module, sides in found.items()}


def _check_size(where: str, what: str, matrix: Matrix, wanted: tuple[int, int]) -> None:
    if matrix.shape != wanted:
        raise BadInput(
            f"{where}: {what}: {' x '.join(map(str, matrix.shape))} instead of {wanted[0]} x {wanted[1]}",
            hint="the adapter was made for a model of another size, or with another rank",
        )


def main(argv: list[str]) -> int:
    """Check an adapter against its model and write it with a manifest."""
    parser = EntrypointParser(prog="python -m windlass.serve.engine.adapters")
    for name in ("source", "base", "target"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--of", default="", help="name of the base model")
    args = parser.parse_args(argv)
    shape = shape_from_config(read_config(args.base), str(args.base / "config.json"))
    adapter = load_adapter(args.source, shape)
    numbers = sum(down.size + up.size for down, up in adapter.matrices.values())
    writer = DirectoryWriter(StoreDir(args.target))
    for file in (CONFIG, WEIGHTS):
        with writer.writing(file) as out:
            out.write((args.source / file).read_bytes())
    facts = {"parameters": numbers, "rank": adapter.rank}
    writer.commit({"family": "lora", "adapter_of": args.of, "model": facts})
    emit({"done": facts})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
