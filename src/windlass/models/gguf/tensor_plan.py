"""Which tensors a Hugging Face directory gets from a GGUF file, and how each is made.

Input: a GgufFile and its Architecture. Output: PlannedTensors. Rows are put in order while they are still
quantised bytes, so a tensor is converted piece by piece and never is in memory as a whole; only GPT-2's
transposed matrices are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.gguf.architectures import Architecture
from windlass.models.gguf.dequantise import check_computable, dequantise
from windlass.models.gguf.reader import GgufFile, TensorInfo
from windlass.spec.errors import BadInput, Damaged

BLOCK = re.compile(r"blk\.(\d{1,4})\.([a-z0-9_]+)(?:\.(\d{1,4}))?\.(weight|bias)")
OUTSIDE = re.compile(r"([a-z0-9_]+)\.(weight|bias)")
READ_ELSEWHERE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hf_config turns into fields."""
MAX_PIECE_BYTES = 1 << 24
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the directory: part of a tensor of the file."""

    name: str
    shape: tuple[int, ...]
    source: TensorInfo
    rows: range | Indices
    """Which rows of the source, in the order of the directory."""
    offset: float = 0.0
    transposed: bool = False

    def pieces(self, file: GgufFile) -> Iterator[NDArray[np.float32]]:
        """Yield the weights in order, some rows at a time."""
        raw, kind = file.rows(self.source), self.source.kind
        if len(self.source.shape) == 1:
            raw = raw.reshape(-1, kind.bytes)  # of a vector each weight is a row
        step = max(1, MAX_PIECE_BYTES // (4 * self.source.shape[-1]))
        step = len(self.rows) if self.transposed else step
        for start in range(0, len(self.rows), step):
            rows = self.rows[start : start + step]
            taken = raw[rows.start : rows.stop] if isinstance(rows, range) else raw[rows]
            values = dequantise(taken, kind)
            values = values + np.float32(self.offset) if self.offset else values
            yield values.T if self.transposed else values


def plan_tensors(file: GgufFile, architecture: Architecture, config: dict[str, Any]) -> list[PlannedTensor]:
    """Return every tensor of the directory, in the order of the file."""
    planned: list[PlannedTensor] = []
    for info in file.tensors.values():
        if info.name in READ_ELSEWHERE:
            continue
        check_computable(info.kind, f"{file.path}: tensor '{info.name}'")
        if architecture.always_tied and info.name == "output.weight":
            continue
        planned += _planned(file, architecture, config, info)
    if architecture.always_tied and "output.weight" in file.tensors:
        planned = [_finer_embedding(file, each) for each in planned]
    names = [each.name for each in planned]
    if len(set(names)) != len(names):
        raise Damaged(f"{file.path}: two of its tensors have one name in a model directory")
    return planned


def _finer_embedding(file: GgufFile, planned: PlannedTensor) -> PlannedTensor:
    """A tied matrix that a file stores twice is taken from where it has more bits."""
    output = file.tensors["output.weight"]
    if planned.source.name != "token_embd.weight" or output.nbytes <= planned.source.nbytes:
        return planned
    if output.shape != planned.source.shape:
        raise Damaged(f"{file.path}: 'output.weight' is not of the size of 'token_embd.weight'")
    return replace(planned, source=output)


def _planned(
    file: GgufFile, architecture: Architecture, config: dict[str, Any], info: TensorInfo
) -> Iterator[PlannedTensor]:
    theirs, part, stacked = _their_name(file, architecture, info)
    plain = PlannedTensor(f"{theirs}.{part}", info.shape, info, range(_rows(info)))
    if stacked:
        yield from _unstacked(file, plain, theirs, part)
        return
    if architecture.norm_offset and theirs.endswith("norm") and part == "weight":
        plain = replace(plain, offset=-1.0)
    if theirs.endswith(architecture.transposed) and architecture.transposed and part == "weight":
        plain = replace(plain, shape=info.shape[::-1], transposed=True)
    order = row_order(architecture, config, theirs, len(plain.rows))
    yield plain if order is None else replace(plain, rows=order)


def _their_name(file: GgufFile, architecture: Architecture, info: TensorInfo) -> tuple[str, str, bool]:
    """Return the name, its last part, and whether {} in it counts tensors that are stacked into one."""
    block, outside = BLOCK.fullmatch(info.name), OUTSIDE.fullmatch(info.name)
    theirs, part, expert = None, "", None
    if block is not None:
        inside = architecture.inside.get(block[2]) or architecture.inside.get(f"{block[2]}_exps")
        theirs = f"{architecture.layer.format(int(block[1]))}.{inside}" if inside else None
        part, expert = block[4], block[3]
    elif outside is not None:
        theirs, part = architecture.outside.get(outside[1]), outside[2]
    if theirs is None or (expert is not None and "{}" not in theirs):
        raise BadInput(f"{file.path}: tensor '{info.name}' is not one of architecture '{architecture.name}'")
    if expert is not None:
        return theirs.format(int(expert)), part, False
    return theirs, part, "{}" in theirs


def _rows(info: TensorInfo) -> int:
    return info.shape[0] if len(info.shape) == 1 else info.weights // info.shape[-1]


def _unstacked(file: GgufFile, whole: PlannedTensor, theirs: str, part: str) -> Iterator[PlannedTensor]:
    """Take the tensors of experts, or of heads, out of one tensor."""
    shape = whole.source.shape
    if len(shape) < 2:
        raise Damaged(f"{file.path}: tensor '{whole.source.name}' is not a stack of tensors")
    rows = len(whole.rows) // shape[0]
    for number in range(shape[0]):
        name = f"{theirs.format(number)}.{part}"
        yield PlannedTensor(name, shape[1:], whole.source, range(number * rows, (number + 1) * rows))


def row_order(architecture: Architecture, config: dict[str, Any], theirs: str, rows: int) -> Indices | None:
    """Return which row of the file each row of the directory is, where the two differ."""
    heads = config.get("num_attention_heads", 0)
    if architecture.permuted and theirs.endswith(("q_proj", "k_proj")):
        return _halves_of_heads(heads if theirs.endswith("q_proj") else config["num_key_value_heads"], rows)
    if architecture.grouped_qkv and theirs.endswith("query_key_value"):
        groups = heads if architecture.grouped_qkv == "heads" else config["num_kv_heads"]
        return _grouped(heads, groups, rows)
    return None


def _halves_of_heads(heads: int, rows: int) -> Indices:
    """GGUF's llama alternates rows of the first and the second half of each head; Hugging Face does not."""
    if rows % (2 * heads):
        raise Damaged(f"{rows} rows of queries or keys do not divide among {heads} heads")
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()


def _grouped(heads: int, groups: int, rows: int) -> Indices:
    """GGUF has all queries, then all keys, then all values; Hugging Face has them group by group."""
    each = heads // groups
    if heads % groups or rows % (heads + 2 * groups):
        raise Damaged(f"{rows} rows of queries, keys and values do not divide among {heads} heads")
    width = rows // (heads + 2 * groups)
    numbers = np.arange(rows).reshape(-1, width)
    queries = numbers[:heads].reshape(groups, each, width)
    keys = numbers[heads : heads + groups].reshape(groups, 1, width)
    values = numbers[heads + groups :].reshape(groups, 1, width)
    return np.concatenate([queries, keys, values], axis=1).ravel()
