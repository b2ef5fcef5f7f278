"""From a directory to an engine: what computes, how much memory, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from windlass.serve.engine import load
from windlass.serve.engine.load import LoadOptions, block_count, load_engine, stop_tokens_of
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import block_bytes
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.serve.engine.torch_runner import TorchRunner
from windlass.spec.errors import BadInput, WindlassError
from windlass.spec.protocol.wire import Generate
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

SHAPE = DecoderShape(vocabulary=101, context=200, layers=2, width=48, heads=6, kv_heads=2, ffn_width=72)
FOR_ONE = 13
QUIET = EngineSettings(slots=2, drafts=False)

Directory = Callable[[str], Path]
Drain = Callable[[Engine], dict[str, list[Answer]]]


def loaded(path: Path, options: LoadOptions) -> Engine:
    engine = load_engine(path, options)
    assert isinstance(engine, Engine)
    return engine


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("which", "kind"), [("auto", NativeRunner), ("native", NativeRunner), ("torch", TorchRunner)]
)
def test_what_computes_can_be_chosen(which: str, kind: type, directory: Directory) -> None:
    engine = loaded(directory("llama"), LoadOptions(QUIET, runner=which, threads=1))  # type: ignore[arg-type]
    assert type(engine.runner) is kind
    assert (engine.shape, engine.precision) == (SHAPE, "float32")


def test_torch_computes_where_there_is_no_library(
    directory: Directory, drain: Drain, engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "library", lambda: None)
    without, native = loaded(directory("llama"), LoadOptions(QUIET, threads=1)), engine()
    assert type(without.runner) is TorchRunner
    for one in (without, native):
        one.add("me", Generate("it", [1, 2, 3], 12, temperature=0.0))
    assert drain(without) == drain(native)
    with pytest.raises(BadInput, match="native library is not installed"):
        load_engine(directory("llama"), LoadOptions(QUIET, runner="native"))
    with pytest.raises(BadInput, match="int8 weights need the native library"):
        load_engine(directory("llama"), LoadOptions(QUIET, precision="int8"))


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_the_precision_requested_is_computed_in(
    precision: str, directory: Directory, drain: Drain, engine: Callable[..., Engine]
) -> None:
    one = loaded(directory("llama"), LoadOptions(QUIET, precision=precision, threads=1, half_keys=False))
    assert one.precision == precision
    other = engine(precision=precision)
    for each in (one, other):
        each.add("me", Generate("it", [1, 2, 3], 12, temperature=0.0))
    assert drain(one) == drain(other)


def test_a_bert_is_served_by_an_encoder(directory: Directory) -> None:
    assert type(load_engine(directory("bert"), LoadOptions(QUIET, threads=1))).__name__ == "EncoderEngine"


def test_memory_for_keys_is_what_was_allowed() -> None:
    each = block_bytes(SHAPE, half=False)
    assert each == 2 * 2 * 2 * 8 * 16 * 4
    assert block_bytes(SHAPE, half=True) == each // 2
    assert block_count(SHAPE, LoadOptions(keys_bytes=20 * each + 1), half=False) == 20
    with pytest.raises(
        BadInput, match=f"needs {FOR_ONE * each} bytes of keys and values; {12 * each} are allowed"
    ):
        block_count(SHAPE, LoadOptions(keys_bytes=12 * each), half=False)


def test_by_default_there_are_blocks_for_all_slots_if_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = LoadOptions(EngineSettings(slots=3))
    assert block_count(SHAPE, options, half=False) == 3 * FOR_ONE
    free = psutil.virtual_memory()._replace(available=4 * 20 * block_bytes(SHAPE, half=False))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert block_count(SHAPE, options, half=False) == 20
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free._replace(available=0))
    assert block_count(SHAPE, options, half=False) == FOR_ONE


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0], ids=["header", "middle", "end"])
def test_a_model_file_with_a_flipped_bit_is_refused(
    share: float, directory: Directory, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    writer = DirectoryWriter(StoreDir(path))
    for source in sorted(directory("llama").iterdir()):
        with writer.writing(source.name) as out:
            out.write(source.read_bytes())
    writer.commit({})
    load_engine(path, LoadOptions(QUIET, threads=1))
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[int(share * (len(data) - 1))] ^= 4
    file.write_bytes(data)
    with pytest.raises(WindlassError, match=file.name):
        load_engine(path, LoadOptions(QUIET, threads=1))


def test_stop_tokens_are_those_that_the_files_name(tmp_path: Path) -> None:
    assert stop_tokens_of(tmp_path, 10) == []
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 3, 99]}))
    assert stop_tokens_of(tmp_path, 10) == [3, 5]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_native_engine_never_loads_torch(directory: Directory) -> None:
    program = f"""
import sys
from pathlib import Path
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.spec.protocol.wire import Generate
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
engine = load_engine(Path({str(directory("llama"))!r}), LoadOptions(threads=1))
engine.add("me", Generate("it", [1, 2], 3))
while not engine.is_idle:
    engine.step()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
