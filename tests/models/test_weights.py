"""Weights opened over memory-mapped files, beside what torch loads from the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file

from windlass.models.build import build, outline
from windlass.models.huggingface import load_model, save_model
from windlass.models.mmap_tensors import narrowed, widened
from windlass.models.weights import Float, load_weights
from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.spec.shape import BertShape, DecoderShape, MlpShape, Network
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

LLAMA = DecoderShape(vocabulary=97, context=64, layers=2, width=48, heads=6, kv_heads=2, ffn_width=88)
SHAPES = {
    "llama": LLAMA,
    "llama tied": LLAMA.model_copy(update={"tied": True}),
    "llama wide heads": LLAMA.model_copy(update={"explicit_head_width": 14}),
    "gpt2": DecoderShape(family="gpt2", vocabulary=53, context=32, layers=2, width=48, heads=3, ffn_width=37),
    "bert": BertShape(vocabulary=53, context=32, layers=2, width=48, heads=3, ffn_width=37, token_types=3),
    "mlp": MlpShape(vocabulary=53, context=32, layers=2, width=48, ffn_width=37, window=3),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(build(LLAMA, seed=3), tmp_path)
    return tmp_path


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_sizes_are_those_of_the_built_model(shape: Network) -> None:
    built = {name: tuple(weight.shape) for name, weight in outline(shape).named_parameters()}
    assert shape.weight_sizes() == built


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_weights_are_those_that_torch_loads(shape: Network, dtype: str, tmp_path: Path) -> None:
    save_model(build(shape, seed=1, dtype=TYPES[dtype]), tmp_path, max_shard_bytes=20_000)
    weights = load_weights(tmp_path)
    assert (weights.shape, weights.precision) == (shape, dtype)
    for name, tensor in load_model(tmp_path, dtype=torch.float32).state_dict().items():
        weight = weights.get(name)
        assert isinstance(weight, Float)
        assert weight.values.flags.c_contiguous
        assert weight.values.flags.aligned
        np.testing.assert_array_equal(weight.widened(), tensor.numpy(), err_msg=name)


def test_what_lies_right_in_its_file_is_not_copied(folder: Path) -> None:
    weight = load_weights(folder).get("layers.1.ffn.down.weight")
    assert isinstance(weight, Float)
    assert not weight.values.flags.owndata
    assert not weight.values.flags.writeable


def test_a_file_that_aligns_nothing_is_read_all_the_same(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    weight = load_weights(folder).get("norm.weight")
    assert isinstance(weight, Float)
    assert weight.values.flags.aligned
    np.testing.assert_array_equal(weight.values, np.ones(48, np.float32))


def test_nothing_that_computes_is_loaded(folder: Path) -> None:
    code = (
        "import sys; from windlass.models.weights import load_weights;"
        f"load_weights({str(folder)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_and_an_unknown_tensor_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.extra.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadInput, match=r"missing model.norm.weight; unexpected .*mlp.extra.weight"):
        load_weights(folder)


def test_a_tensor_of_the_wrong_size_is_named_with_the_right_one(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 87}))
    with pytest.raises(BadInput, match=r"gate_proj.weight is \[88, 48\], not \[87, 48\]"):
        load_weights(folder)


@pytest.mark.parametrize("kept", [0, 7, 300, 20_000])
def test_a_file_cut_off_anywhere_is_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Damaged, match="not a whole safetensors file"):
        load_weights(folder)


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_header_with_any_bytes_changed_is_read_or_refused_by_us(
    folder: Path, changes: list[tuple[int, int]]
) -> None:
    path = folder / "model.safetensors"
    kept = path.read_bytes()
    data = bytearray(kept)
    for at, value in changes:
        data[at % (8 + int.from_bytes(kept[:8], "little"))] = value
    try:
        path.write_bytes(data)
        weights = load_weights(folder)
        assert all(weights.get(name).widened().shape == size for name, size in weights.sizes.items())
    except (BadInput, Damaged):
        pass
    finally:
        path.write_bytes(kept)


def test_flipped_bytes_are_found_where_there_is_a_manifest(tmp_path: Path) -> None:
    writer = DirectoryWriter(StoreDir(tmp_path))
    save_model(build(LLAMA, seed=3), writer)
    writer.commit()
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(Damaged, match="the bytes differ"):
        load_weights(tmp_path)


def test_a_pickle_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="pickle"):
        load_weights(folder)


def test_an_unknown_family_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(BadInput, match="model_type = 'mamba' is not supported"):
        load_weights(folder)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no config\.json"):
        load_weights(tmp_path)


def test_a_tied_matrix_stored_twice_must_be_the_same_twice(tmp_path: Path) -> None:
    save_model(build(SHAPES["gpt2"], seed=1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()},
        tmp_path / "model.safetensors",
    )
    load_weights(tmp_path)
    save_file(
        tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1}, tmp_path / "model.safetensors"
    )
    with pytest.raises(BadInput, match=r"'lm_head\.weight' differs"):
        load_weights(tmp_path)


def test_numbers_of_another_kind_are_refused_by_name(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"model.norm.weight": torch.ones(48, dtype=torch.int64)}, folder / "model.safetensors"
    )
    with pytest.raises(BadInput, match=r"tensor 'model\.norm\.weight' is of type I64"):
        load_weights(folder)


@given(arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32)))
def test_rounding_to_bfloat16_is_that_of_torch(values: np.ndarray) -> None:
    ours, theirs = widened(narrowed(values)), torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(ours, theirs)
