"""A GPTQ or AWQ directory to a directory of plain weights.

Input: a Hugging Face directory whose config.json names the method. Output: the same files with float16,
bfloat16 or float32 weights (what the model says of itself) and without `quantization_config`. One matrix is
in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.files import COMPANIONS, CONFIG, read_config
from windlass.models.gguf.safetensors_stream import SIZES, StreamedTensor, write_weights
from windlass.models.mmap_tensors import MappedTensors, widened
from windlass.models.packed.layouts import awq_weight, gptq_weight
from windlass.spec.errors import BadInput, Damaged
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

METHODS = ("gptq", "awq")
GPTQ_BITS = (2, 4, 8)
PACKED = ("qweight", "qzeros", "scales", "g_idx")
SIGNED = "I32"


def packed_method(config: Mapping[str, Any]) -> str | None:
    """Return the method of a directory whose weights are packed, or None."""
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    return method if method in METHODS else None


def dequantise_directory(source: Path, target: Path) -> None:
    """Write the directory without a manifest; it is imported next, which checks names and sizes."""
    config = read_config(source)
    quantised = config.pop("quantization_config")
    _check_method(quantised, str(source / CONFIG))
    files = MappedTensors(source)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float16")
    dtype = dtype if dtype in SIZES else "float16"
    tensors = [_plain(files, name) for name in files.names() if name.rpartition(".")[2] not in PACKED]
    stems = [name.removesuffix(".qweight") for name in files.names() if name.endswith(".qweight")]
    tensors += [_unpacked(files, stem, quantised) for stem in stems]
    target.mkdir(parents=True)
    writer = DirectoryWriter(StoreDir(target))
    write_weights(tensors, dtype, writer)
    config |= {"dtype": dtype, "torch_dtype": dtype}
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _check_method(quantised: Mapping[str, Any], where: str) -> None:
    method, bits = quantised["quant_method"], quantised.get("bits", quantised.get("w_bit", 4))
    if method == "awq" and (bits != 4 or str(quantised.get("version", "gemm")).lower() != "gemm"):
        raise BadInput(f"{where}: AWQ of {bits} bits, version '{quantised.get('version')}' is not supported",
                       hint="supported: 4 bits, version gemm")  # fmt: skip
    if method == "awq" and quantised.get("zero_point") is False:
        raise BadInput(f"{where}: AWQ without zero points is not supported")
    if method == "gptq" and bits not in GPTQ_BITS:
        raise BadInput(f"{where}: GPTQ of {bits} bits is not supported", hint="supported: 2, 4 and 8")
    form = quantised.get("checkpoint_format", "gptq")
    if method == "gptq" and form not in ("gptq", "gptq_v2"):
        raise BadInput(f"{where}: GPTQ's format '{form}' is not supported", hint="supported: gptq, gptq_v2")


def _plain(files: MappedTensors, name: str) -> StreamedTensor:
    def pieces() -> Iterator[NDArray[np.float32]]:
        yield widened(files.read(name))

    return StreamedTensor(name, files.shape(name), pieces)


def _unpacked(files: MappedTensors, stem: str, quantised: Mapping[str, Any]) -> StreamedTensor:
    is_gptq = quantised["quant_method"] == "gptq"
    bits = int(quantised.get("bits", 4)) if is_gptq else 4
    each = 32 // bits
    rows, columns = _matrix(files, f"{stem}.qweight", SIGNED)
    inputs, outputs = (rows * each, columns) if is_gptq else (rows, columns * each)
    groups, width = _matrix(files, f"{stem}.scales", None)
    if width != outputs or _matrix(files, f"{stem}.qzeros", SIGNED) != (groups, outputs // each):
        raise Damaged(f"{files.directory}: scales and zeros of '{stem}' do not fit its weights")
    if not 0 < groups <= inputs or (not is_gptq and inputs % groups):
        raise Damaged(f"{files.directory}: '{stem}' has {groups} groups for {inputs} inputs")

    def pieces() -> Iterator[NDArray[np.float32]]:
        q, zeros = files.read(f"{stem}.qweight"), files.read(f"{stem}.qzeros")
        scales = widened(files.read(f"{stem}.scales"))
        if not is_gptq:
            yield awq_weight(q, zeros, scales)
            return
        plus_one = quantised.get("checkpoint_format", "gptq") == "gptq"
        yield gptq_weight(
            q, zeros, scales, _groups(files, stem, inputs, groups), bits=bits, plus_one=plus_one
        )

    return StreamedTensor(f"{stem}.weight", (outputs, inputs), pieces)


def _matrix(files: MappedTensors, name: str, code: str | None) -> tuple[int, int]:
    if name not in files.names():
        raise Damaged(f"{files.directory}: tensor '{name}' is missing")
    shape = files.shape(name)
    if len(shape) != 2 or (code is not None and files.code(name) != code):
        raise Damaged(f"{files.directory}: tensor '{name}' is not a matrix of {code or 'numbers'}")
    return shape[0], shape[1]


def _groups(files: MappedTensors, stem: str, inputs: int, groups: int) -> NDArray[np.int32]:
    """Return the group of every input: as stored, or one after the other."""
    name = f"{stem}.g_idx"
    if name not in files.names():
        return (np.arange(inputs) // -(-inputs // groups)).astype(np.int32)
    stored = files.read(name)
    if stored.shape != (inputs,) or stored.min() < 0 or stored.max() >= groups:
        raise Damaged(f"{files.directory}: '{name}' does not name a group for each of {inputs} inputs")
    return np.asarray(stored, np.int32)
