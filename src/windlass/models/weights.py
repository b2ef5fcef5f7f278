"""The weights of a model directory, by our names, over the memory-mapped files; nothing loads torch.

Input: a Hugging Face directory, or one that `windlass models compress` wrote. Output: Weights. All names and
sizes are checked at once; values are read on access. Tensors that a file stores as a kernel needs them (rows
are outputs, contiguous) are returned in place; GPT-2's turned and joined matrices are copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import CONFIG, check_manifest, listed, read_config
from windlass.models.mmap_tensors import MappedTensors, widened
from windlass.models.names import Pair, naming_of
from windlass.models.quantised import BITS, LANES, NIBBLE, Grouped, without_quantisation
from windlass.spec.config import network_from_config
from windlass.spec.errors import BadInput
from windlass.spec.shape import Network

__all__ = ["Float", "Grouped", "ModelWeights", "load_weights"]

PRECISIONS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Float:
    """A matrix (N, K) or a vector (N) of float32, float16, float64, or bfloat16 as its bits in uint16."""

    values: NDArray[Any]

    def widened(self) -> NDArray[np.float32]:
        return widened(self.values)


@dataclass(frozen=True)
class _Part:
    """Where one of our weights is stored: a tensor, and which part of it (without a pair: all of it)."""

    tensor: str
    pair: Pair | None = None
    which: int = 0


class ModelWeights:
    """The checked weights of one model."""

    def __init__(
        self,
        shape: Network,
        files: MappedTensors,
        where: Mapping[str, _Part],
        quantised: str,
    ) -> None:
        self.shape, self.sizes = shape, shape.weight_sizes()
        self._files, self._where, self._quantised = files, where, quantised

    @property
    def precision(self) -> str:
        """What the matrices are stored as: float32, float16, bfloat16, int8 or int4."""
        return self._quantised or PRECISIONS[self._files.code(self._where["embedding.weight"].tensor)]

    @property
    def head_name(self) -> str:
        """The name of the output matrix; if tied, that of the embedding."""
        return "head.weight" if "head.weight" in self.sizes else "embedding.weight"

    def names(self) -> list[str]:
        return list(self.sizes)

    def get(self, name: str) -> Float | Grouped:
        """Return one weight, C-contiguous and aligned; a KeyError is a name that the family does not have."""
        part = self._where[name]
        if not part.tensor.endswith(".q"):
            return Float(self._values(part))
        return _stored_grouped(self._files, name, self.sizes[name][1])

    def _values(self, part: _Part) -> NDArray[Any]:
        values = self._files.read(part.tensor)
        if part.pair is None:
            return np.ascontiguousarray(values)
        found = part.pair.part(values, part.which)
        return np.ascontiguousarray(found.reshape(part.pair.sizes[part.which]))


def load_weights(directory: str | os.PathLike[str]) -> ModelWeights:
    """Open and check a model; bytes that differ from what its manifest says are refused."""
    folder = Path(directory)
    config, quantised = without_quantisation(read_config(folder), str(folder / CONFIG))
    shape = network_from_config(config, str(folder / CONFIG))
    check_manifest(folder)
    files = MappedTensors(folder)
    where = _own_places(files, shape) if quantised else _their_places(files, shape)
    return ModelWeights(shape, files, where, quantised)


def _own_places(files: MappedTensors, shape: Network) -> dict[str, _Part]:
    """Find the weights of a quantised directory, whose tensors have our names."""
    sizes, stored = shape.weight_sizes(), set(files.names())
    where = {name: _Part(name if name in stored else f"{name}.q") for name in sizes}
    used = {name for part in where.values() for name in _tensors_of(part)}
    _refuse_unfit(files, sorted(used - stored), sorted(stored - used))
    misfits = [
        f"{name} does not hold {list(size)} numbers"
        for name, size in sizes.items()
        if not _holds(files, where[name], name, size)
    ]
    if misfits:
        raise BadInput(f"{files.directory}: weights do not fit {CONFIG}: {listed(misfits)}")
    return where


def _tensors_of(part: _Part) -> list[str]:
    is_grouped = part.tensor.endswith(".q")
    return [part.tensor, part.tensor.removesuffix(".q") + ".scale"] if is_grouped else [part.tensor]


def _holds(files: MappedTensors, part: _Part, name: str, size: tuple[int, ...]) -> bool:
    """Whether the tensors of a weight have types and sizes that a kernel may trust."""
    if not part.tensor.endswith(".q"):
        return files.code(name) in PRECISIONS and files.shape(name) == size
    q, scale = files.shape(f"{name}.q"), files.shape(f"{name}.scale")
    codes = files.code(f"{name}.q"), files.code(f"{name}.scale")
    if codes not in (("I8", "F32"), ("U8", "F32")) or not len(q) == len(scale) == len(size) == 2:
        return False
    padded = q[1] * (2 if codes[0] == "U8" else 1)
    if not q[0] == scale[0] == size[0] or scale[1] == 0 or padded % (scale[1] * LANES):
        return False
    return 0 <= padded - size[1] < padded // scale[1]


def _stored_grouped(files: MappedTensors, name: str, width: int) -> Grouped:
    q, scale = files.read(f"{name}.q"), files.read(f"{name}.scale")
    bits = NIBBLE if q.dtype == np.uint8 else BITS["int8"]
    padded = q.shape[1] * (2 if bits == NIBBLE else 1)
    return Grouped(bits, q, scale, padded // scale.shape[1], width)


def _their_places(files: MappedTensors, shape: Network) -> dict[str, _Part]:
    """Find the weights of a Hugging Face directory."""
    naming = naming_of(shape)
    stored = {naming.present(name): name for name in files.names()}
    pairs = {pair.theirs: pair for pair in naming.pairs(shape)}
    extra = [
        name for name in stored
        if name not in pairs and name not in naming.copies and not naming.harmless.fullmatch(name)
    ]  # fmt: skip
    _refuse_unfit(files, [name for name in pairs if name not in stored], extra)
    _refuse_other_kinds(files, [stored[name] for name in (*pairs, *naming.copies) if name in stored])
    wanted = {theirs: pair.stored_size for theirs, pair in pairs.items()}
    misfits = [
        f"{name} is {list(files.shape(stored[name]))}, not {list(size)}"
        for name, size in wanted.items()
        if files.shape(stored[name]) != size
    ]
    if misfits:
        raise BadInput(f"{files.directory}: weights do not fit {CONFIG}: {listed(misfits)}")
    where = {
        ours: _Part(stored[pair.theirs], pair, which)
        for pair in pairs.values()
        for which, ours in enumerate(pair.ours)
    }
    copies = {
        stored[theirs]: where[ours].tensor
        for theirs, ours in naming.copies.items()
        if theirs in stored and theirs not in pairs
    }
    _check_copies(files, copies)
    return where


def _refuse_unfit(files: MappedTensors, missing: list[str], extra: list[str]) -> None:
    problems = [f"missing {listed(missing)}"] if missing else []
    problems += [f"unexpected {listed(extra)}"] if extra else []
    if problems:
        raise BadInput(f"{files.directory}: weights do not fit {CONFIG}: {'; '.join(problems)}")


def _refuse_other_kinds(files: MappedTensors, names: list[str]) -> None:
    for name in names:
        code = files.code(name)
        if code not in PRECISIONS:
            raise BadInput(
                f"{files.file_of(name)}: tensor '{name}' is of type {code}, which is not supported",
                hint=f"supported: {', '.join(PRECISIONS)}; convert quantised weights back first",
            )


def _check_copies(files: MappedTensors, copies: Mapping[str, str]) -> None:
    """A tied matrix that a file stores twice must be the same twice."""
    for copy, original in copies.items():
        if not np.array_equal(widened(files.read(copy)), widened(files.read(original))):
            raise BadInput(
                f"{files.directory}: '{copy}' differs from the matrix that {CONFIG} ties it to",
                hint='a llama model with two matrices says "tie_word_embeddings": false',
            )
