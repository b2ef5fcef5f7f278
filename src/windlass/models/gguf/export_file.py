"""A model directory to a GGUF file that llama.cpp loads.

Input: a Hugging Face directory of a family in `architectures`. Output: one file; its metadata comes from
config.json and the tokenizer's files, its tensors are read, put in order and quantised some rows at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import CONFIG, check_manifest, read_config
from windlass.models.gguf.architectures import (
    ARCHITECTURES,
    FALCON,
    FALCON_40B,
    MIXTURE,
    Architecture,
)
from windlass.models.gguf.ggml_types import TYPES, GgmlType
from windlass.models.gguf.metadata import metadata_of, rotary_factors
from windlass.models.gguf.quantise import quantise
from windlass.models.gguf.tensor_plan import row_order
from windlass.models.gguf.vocabulary_metadata import vocabulary_metadata
from windlass.models.gguf.writer import WrittenTensor, write_gguf
from windlass.models.mmap_tensors import MappedTensors, widened
from windlass.spec.errors import BadInput, InUse, did_you_mean

FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "q4_k": 15, "bf16": 32}
"""What `--type` may be, with llama.cpp's number for the whole file."""
FINER = {"Q4_0": "Q8_0", "Q4_K": "Q8_0"}
"""What embeddings and output get, which lose more by quantisation than they save."""
PIECE_ROWS_BYTES = 1 << 24
Array = NDArray[Any]


@dataclass(frozen=True)
class _Place:
    """Where a tensor of the directory goes."""

    name: str
    theirs: str
    """The name without `.weight` or `.bias`."""
    number: int = -1
    """Its place in a stack, or -1."""


def export_gguf(source: Path, target: Path, kind: str, pre: str | None = None) -> dict[str, Any]:
    """Write the file; it appears whole or not at all."""
    if target.exists():
        raise InUse(f"{target}: exists already", hint="give a new file")
    config = read_config(source)
    check_manifest(source)
    architecture = architecture_for(config, str(source / CONFIG))
    files = MappedTensors(source)
    metadata = metadata_of(config, architecture, FILE_TYPES[kind], source)
    metadata |= vocabulary_metadata(source, config["vocab_size"], pre)
    tensors = list(_tensors(files, config, architecture, TYPES[kind.upper()]))
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as file:
            written = write_gguf(file, metadata, tensors)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return {"path": str(target), "bytes": written, "type": kind, "tensors": len(tensors)}


def architecture_for(config: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture of a model type; one that GGUF has not, or that is quantised, is refused."""
    if config.get("quantization_config") or config.get("quantization"):
        raise BadInput(
            f"{where}: its weights are quantised already", hint="export the version it was made from"
        )
    model_type = config.get("model_type")
    if model_type == "falcon":
        return FALCON_40B if config.get("new_decoder_architecture") else FALCON
    known = {"mistral": ARCHITECTURES["llama"], "mixtral": MIXTURE}
    known |= {each.model_type: each for each in ARCHITECTURES.values()}
    found = known.get(str(model_type))
    if found is None:
        raise BadInput(
            f"{where}: a model of type '{model_type}' cannot be written as GGUF",
            hint=did_you_mean(str(model_type), sorted(known)),
        )
    if config.get("sliding_window") and not found.window_every and model_type == "mistral":
        raise BadInput(f"{where}: GGUF's llama has no sliding window", hint="llama.cpp cannot compute it")
    return found


def _tensors(
    files: MappedTensors, config: dict[str, Any], architecture: Architecture, kind: GgmlType
) -> Iterator[WrittenTensor]:
    """Yield the tensors of the file, embeddings first, then layer by layer."""
    stacks: dict[str, list[str]] = defaultdict(list)
    order: dict[str, str] = {}
    for name in sorted(files.names(), key=_natural):
        place = _place(architecture, name, config)
        if place is not None:
            stacks[place.name].append(name)
            order[place.name] = place.theirs
    for name, sources in stacks.items():
        yield _written(files, config, architecture, kind, name, order[name], sources)
    for name, values in rotary_factors(config, architecture).items():
        raw = values.astype("<f4").tobytes()
        yield WrittenTensor(name, values.shape, TYPES["F32"], lambda raw=raw: iter([raw]))  # type: ignore[misc]


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _place(architecture: Architecture, name: str, config: Mapping[str, Any]) -> _Place | None:
    """Return where a tensor goes; None is a copy of a tied matrix, or a table that is computed."""
    stem, _, part = name.rpartition(".")
    if name.endswith((".inv_freq", ".masked_bias", ".attn.bias")):
        return None
    for ours, theirs in architecture.outside.items():
        if stem == theirs:
            tied = architecture.always_tied or config.get("tie_word_embeddings")
            return None if ours == "output" and tied else _Place(f"{ours}.{part}", theirs)
    pattern = re.escape(architecture.layer).replace(r"\{\}", r"(\d+)")
    match = re.fullmatch(rf"{pattern}\.(.+)", stem)
    for ours, theirs in architecture.inside.items():
        inside = match and re.fullmatch(re.escape(theirs).replace(r"\{\}", r"(\d+)"), match[2])
        if match and inside:
            number = int(inside[1]) if inside.groups() else -1
            return _Place(f"blk.{int(match[1])}.{ours}.{part}", theirs, number)
    raise BadInput(f"tensor '{name}' has no name in GGUF's architecture '{architecture.name}'")


def _written(
    files: MappedTensors, config: dict[str, Any], architecture: Architecture, kind: GgmlType,
    name: str, theirs: str, sources: list[str],
) -> WrittenTensor:  # fmt: skip
    turned = theirs.endswith(architecture.transposed) and architecture.transposed and name.endswith("weight")
    shape = files.shape(sources[0])
    shape = shape[::-1] if turned else shape
    stacked = (len(sources), *shape) if "{}" in theirs else shape
    chosen = _type_of(kind, name, stacked)

    def pieces() -> Iterator[bytes | memoryview]:
        for source in sources:
            values = files.read(source)
            order = _order(architecture, config, theirs, len(values))
            yield from _pieces(values.T if turned else values, order, chosen, _offset(architecture, name))

    return WrittenTensor(name, stacked, chosen, pieces)


def _order(
    architecture: Architecture, config: dict[str, Any], theirs: str, rows: int
) -> NDArray[np.int64] | None:
    """Return which row of the directory each row of the file is: the inverse of the import's order."""
    order = row_order(architecture, config, theirs, rows)
    return None if order is None else np.argsort(order)


def _offset(architecture: Architecture, name: str) -> float:
    return 1.0 if architecture.norm_offset and name.endswith("norm.weight") else 0.0


def _pieces(
    values: Array, order: NDArray[np.int64] | None, kind: GgmlType, offset: float
) -> Iterator[memoryview]:
    if values.ndim == 1:
        whole = widened(values if order is None else values[order]) + np.float32(offset)
        yield quantise(whole.reshape(1, -1), kind).data.cast("B")
        return
    step = max(1, PIECE_ROWS_BYTES // (4 * values.shape[-1]))
    for start in range(0, len(values), step):
        rows = values[start : start + step] if order is None else values[order[start : start + step]]
        yield quantise(widened(rows).reshape(-1, values.shape[-1]), kind).data.cast("B")


def _type_of(kind: GgmlType, name: str, shape: tuple[int, ...]) -> GgmlType:
    """Vectors, positions and routers stay float32; rows that do not fill blocks get a smaller block."""
    if len(shape) == 1 or name.startswith(("position_embd", "rope_")) or "ffn_gate_inp" in name:
        return TYPES["F32"]
    if re.search(r"norm\.(weight|bias)", name):
        return TYPES["F32"]
    if name.startswith(("token_embd", "output.")):
        kind = TYPES[FINER.get(kind.name, kind.name)]
    if shape[-1] % kind.block == 0:
        return kind
    return TYPES["Q8_0"] if kind.block > 32 and shape[-1] % 32 == 0 else TYPES["F16"]
