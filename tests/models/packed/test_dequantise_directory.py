"""GPTQ and AWQ directories are unpacked by their published definitions, written out number by number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from windlass.models.packed.dequantise_directory import dequantise_directory, packed_method
from windlass.models.packed.layouts import awq_weight, gptq_weight
from windlass.spec.errors import BadInput, Damaged

INPUTS, OUTPUTS, GROUPS = 64, 24, 4


def numbers(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(bits)
    q = rng.integers(0, 1 << bits, (INPUTS, OUTPUTS))
    zeros = rng.integers(1, 1 << bits, (GROUPS, OUTPUTS))
    return q, zeros, rng.normal(0, 0.1, (GROUPS, OUTPUTS)).astype(np.float16)


def word(values: list[int], bits: int) -> int:
    return int(np.uint32(sum(value << (bits * n) for n, value in enumerate(values))).view(np.int32))


def packed_gptq(q: np.ndarray, zeros: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    n = 32 // bits
    qweight = [
        [word([int(q[r * n + k, c]) for k in range(n)], bits) for c in range(OUTPUTS)]
        for r in range(INPUTS // n)
    ]
    qzeros = [
        [word([int(zeros[g, c * n + k]) for k in range(n)], bits) for c in range(OUTPUTS // n)]
        for g in range(GROUPS)
    ]
    return np.array(qweight, np.int32), np.array(qzeros, np.int32)


def packed_awq(values: np.ndarray) -> np.ndarray:
    """AutoAWQ puts column ORDER[k] of each eight into nibble k."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return np.array(
        [[word([int(row[c * 8 + k]) for k in order], 4) for c in range(len(row) // 8)] for row in values],
        np.int32,
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_weights_are_scale_times_difference_to_the_zero_of_their_group(bits: int) -> None:
    q, zeros, scales = numbers(bits)
    g_idx = np.random.default_rng(1).permutation(np.arange(INPUTS) % GROUPS).astype(np.int32)
    want = np.array(
        [
            [
                np.float32(scales[g_idx[i], o]) * (int(q[i, o]) - int(zeros[g_idx[i], o]))
                for i in range(INPUTS)
            ]
            for o in range(OUTPUTS)
        ],
        np.float32,
    )
    for stored, plus_one in ((zeros - 1, True), (zeros, False)):
        qweight, qzeros = packed_gptq(q, stored, bits)
        got = gptq_weight(qweight, qzeros, scales, g_idx, bits=bits, plus_one=plus_one)
        np.testing.assert_array_equal(got, want)


def test_awq_weights_are_unpacked_in_their_order() -> None:
    q, zeros, scales = numbers(4)
    size = INPUTS // GROUPS
    want = np.array(
        [
            [
                np.float32(scales[i // size, o]) * (int(q[i, o]) - int(zeros[i // size, o]))
                for i in range(INPUTS)
            ]
            for o in range(OUTPUTS)
        ],
        np.float32,
    )
    np.testing.assert_array_equal(awq_weight(packed_awq(q), packed_awq(zeros), scales), want)


def directory(folder: Path, quantised: dict[str, Any]) -> dict[str, np.ndarray]:
    q, zeros, scales = numbers(4)
    qweight, qzeros = (
        packed_gptq(q, zeros - 1, 4)
        if quantised["quant_method"] == "gptq"
        else (packed_awq(q), packed_awq(zeros))
    )
    tensors = {
        "a.qweight": qweight,
        "a.qzeros": qzeros,
        "a.scales": scales,
        "norm.weight": np.ones(8, np.float16),
    }
    config = {"model_type": "llama", "torch_dtype": "float16", "quantization_config": quantised}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_directory_loses_its_packing_and_keeps_everything_else(tmp_path: Path, method: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    directory(source, {"quant_method": method, "bits": 4, "group_size": 16})
    assert packed_method(json.loads((source / "config.json").read_text())) == method
    dequantise_directory(source, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {
        "a.weight": (OUTPUTS, INPUTS),
        "norm.weight": (8,),
    }
    assert tensors["a.weight"].dtype == np.float16
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config
    assert (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("quantised", "sentence"),
    [
        ({"quant_method": "gptq", "bits": 3}, "GPTQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "format 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "without zero points"),
    ],
)
def test_other_packings_are_refused_by_name(tmp_path: Path, quantised: dict[str, Any], sentence: str) -> None:
    directory(tmp_path, quantised)
    with pytest.raises(BadInput, match=sentence):
        dequantise_directory(tmp_path, tmp_path / "out")


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tensors = directory(tmp_path, {"quant_method": "gptq", "bits": 4})
    save_file(
        {name: array for name, array in tensors.items() if name != "a.qzeros"}, tmp_path / "model.safetensors"
    )
    with pytest.raises(Damaged, match=r"'a\.qzeros' is missing"):
        dequantise_directory(tmp_path, tmp_path / "out")
    save_file(tensors | {"a.g_idx": np.full(INPUTS, 9, np.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match="does not name a group"):
        dequantise_directory(tmp_path, tmp_path / "out2")
