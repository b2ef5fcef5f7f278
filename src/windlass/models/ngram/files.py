"""The files of an n-gram model: config.json, and model.safetensors with one tensor for each array of each
order.

safetensors is typed, aligned and can be mapped, so the model needs no file format of its own. A file is
written as a stream: types and lengths are known before, and the arrays come in pieces.
docs/formats/ngram.md is normative.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import CONFIG, SINGLE, check_manifest, read_config
from windlass.models.mmap_tensors import MappedTensors
from windlass.models.ngram.model import NgramModel
from windlass.models.ngram.trie import Level, word_type
from windlass.spec.config import config_from_shape, shape_from_config
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.shape import NgramShape
from windlass.store.manifest import DirectoryWriter

KINDS = ("probabilities", "backoffs", "words", "begins", "suffixes")
FORMAT = "windlass-ngram-1"
PIECE = 1 << 20
_CODES = {"<f4": "F32", "<u4": "U32", "<u2": "U16"}


@dataclass(frozen=True)
class PendingArray:
    """An array that comes in pieces: its type and length are known before."""

    dtype: np.dtype[Any]
    length: int
    pieces: Callable[[], Iterable[NDArray[Any]]]


def save_model(
    writer: DirectoryWriter,
    shape: NgramShape,
    arrays: Mapping[str, PendingArray],
    *,
    special_tokens: Mapping[str, int | list[int] | None],
) -> None:
    """Write config.json and model.safetensors; `arrays` are named as `array_name` does."""
    config = config_from_shape(shape, special_tokens=special_tokens)
    writer.write(CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    _write_arrays(writer, arrays)


def promised(levels: Sequence[Level]) -> dict[str, PendingArray]:
    """Promise the arrays of a model that is in memory, or mapped."""
    kinds = {"probabilities": "<f4", "backoffs": "<f4", "begins": "<u4", "suffixes": "<u4"}
    promises = {}
    for order, level in enumerate(levels, start=1):
        for kind in KINDS:
            array = getattr(level, kind)
            if array is not None:
                dtype = np.dtype(kinds.get(kind) or word_type(len(levels[0])))
                promises[array_name(order, kind)] = PendingArray(
                    dtype, len(array), functools.partial(_cut, array)
                )
    return promises


def array_name(order: int, kind: str) -> str:
    return f"order{order}.{kind}"


def load(directory: Path, *, native: bool = True, threads: int = 0) -> NgramModel:
    """Open a model, checked byte by byte where a manifest is; its arrays stay in the file."""
    check_manifest(directory)
    config = read_config(directory)
    shape = shape_from_config(config, str(directory / CONFIG))
    if not isinstance(shape, NgramShape):
        raise BadInput(f"{directory}: a {shape.family} model, not an n-gram model")
    end = config.get("eos_token_id")
    if not isinstance(end, int) or not 0 <= end < shape.vocabulary:
        raise BadInput(f"{directory / CONFIG}: eos_token_id must be the id of the token that ends a text")
    tensors = MappedTensors(directory)
    levels = [_level(tensors, shape, order, directory) for order in range(1, shape.order + 1)]
    ngrams = tuple(len(level) for level in levels)
    if shape.ngrams not in ((), ngrams):
        raise Damaged(f"{directory}: {ngrams} n-grams, but {CONFIG} says {shape.ngrams}")
    _check_links(levels, directory)
    return NgramModel(replace_ngrams(shape, ngrams), levels, end, native=native, threads=threads)


def replace_ngrams(shape: NgramShape, ngrams: tuple[int, ...]) -> NgramShape:
    return shape.model_copy(update={"ngrams": ngrams})


def _level(tensors: MappedTensors, shape: NgramShape, order: int, directory: Path) -> Level:
    names = set(tensors.names())
    found = {kind: array_name(order, kind) for kind in KINDS if array_name(order, kind) in names}
    wanted = {"probabilities"}
    wanted |= {"words", "suffixes"} if order > 1 else set()
    wanted |= {"backoffs", "begins"} if order < shape.order else set()
    if set(found) != wanted:
        raise Damaged(f"{directory / SINGLE}: order {order} has {sorted(found)}, not {sorted(wanted)}")
    level = Level(**{kind: tensors.read(name) for kind, name in found.items()})
    count = len(level)
    lengths = {kind: len(getattr(level, kind)) - (kind == "begins") for kind in found}
    if set(lengths.values()) != {count} or (order == 1 and count != shape.vocabulary):
        raise Damaged(f"{directory / SINGLE}: arrays of order {order} differ in length: {lengths}")
    words = level.words
    if words is not None and words.dtype != word_type(shape.vocabulary):
        return replace(level, words=words.astype(word_type(shape.vocabulary)))
    return level


def _check_links(levels: Sequence[Level], directory: Path) -> None:
    """Check that no link leads out of its array: links are followed without bounds checks."""
    for order, (level, above) in enumerate(itertools.pairwise(levels), start=1):
        begins, words, suffixes = level.begins, above.words, above.suffixes
        assert begins is not None
        assert words is not None
        assert suffixes is not None
        whole = begins[0] == 0 and begins[-1] == len(above) and _rises(begins)
        inside = not len(above) or (_largest(words) < len(levels[0]) and _largest(suffixes) < len(level))
        if not (whole and inside):
            raise Damaged(f"{directory / SINGLE}: links of order {order + 1} lead out of the tree")


def _rises(array: NDArray[Any]) -> bool:
    return all(bool((piece[1:] >= piece[:-1]).all()) for piece in _cut(array, overlap=1))


def _largest(array: NDArray[Any]) -> int:
    return max((int(piece.max()) for piece in _cut(array)), default=-1)


def _cut(array: NDArray[Any], overlap: int = 0) -> Iterable[NDArray[Any]]:
    return (array[start : start + PIECE + overlap] for start in range(0, len(array), PIECE))


def _write_arrays(writer: DirectoryWriter, arrays: Mapping[str, PendingArray]) -> None:
    """Wider numbers come first and the header is padded, so each array is aligned for its numbers."""
    ordered = dict(sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for name, promise in ordered.items():
        start, end = end, end + promise.length * promise.dtype.itemsize
        header[name] = {
            "dtype": _CODES[promise.dtype.str],
            "shape": [promise.length],
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writer.writing(SINGLE) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for promise in ordered.values():
            written = 0
            for piece in promise.pieces():
                file.write(np.ascontiguousarray(piece, dtype=promise.dtype).data)
                written += len(piece)
            assert written == promise.length, "a promise was not kept"
