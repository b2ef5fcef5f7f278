"""Bad input on the real wire: each is refused by its code, and a neighbour is answered all the while."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.spec.protocol.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    Embed,
    EmbeddingVectors,
    Failed,
    FromEngine,
    Generate,
    Message,
    MessageBatch,
    Ready,
    Tokens,
    frame,
    from_engine,
    separated,
)
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

SHAPE = DecoderShape(vocabulary=100, context=64, layers=1, width=16, heads=2, kv_heads=1, ffn_width=24)
PATIENCE_S = 60.0
BIG = 2**62


class Client:
    """A plain client: blocking, one frame at a time."""

    def __init__(self, path: Path) -> None:
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.settimeout(PATIENCE_S)
        self.stream.connect(str(path))
        self._file = self.stream.makefile("rb")
        (self.ready,) = self.next()

    def next(self) -> list[FromEngine]:
        (size,) = LENGTH.unpack(self._file.read(LENGTH.size))
        message = from_engine.decode(self._file.read(size))
        return list(separated(message)) if isinstance(message, MessageBatch) else [message]

    def end_of(self, message: Message, id_: str) -> FromEngine:
        """Send a request; return the last that is said about it."""
        self.stream.sendall(frame(message))
        while True:
            for said in self.next():
                ended = isinstance(said, Failed | EmbeddingVectors) or (
                    isinstance(said, Tokens) and said.finish
                )
                if ended and said.id == id_:
                    return said

    def is_closed(self) -> bool:
        return self._file.read(1) == b""


def save(folder: Path, name: str) -> Path:
    writer = DirectoryWriter(StoreDir(folder / name))
    save_model(build(SHAPE, seed=2), writer)
    writer.commit({})
    return folder / name


def save_adapter(folder: Path) -> Path:
    folder.mkdir()
    at = "base_model.model.model.layers.0.mlp.up_proj"
    sides = {f"{at}.lora_A.weight": np.ones((2, 16)), f"{at}.lora_B.weight": np.ones((24, 2))}
    save_file(
        {name: side.astype(np.float32) for name, side in sides.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    return folder


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[[], Client]]:
    """An engine with a good model and its adapter, and one whose file has a flipped bit."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    good, damaged, adapter = save(folder, "good"), save(folder, "damaged"), save_adapter(folder / "poet")
    data = bytearray((damaged / "model.safetensors").read_bytes())
    data[-50] ^= 4
    (damaged / "model.safetensors").write_bytes(data)
    command = [sys.executable, "-m", "windlass.serve.engine", "--socket", str(folder / "s"), "--threads", "1"]
    command += ["--model", str(good), "--name", "good", "--model", str(damaged), "--name", "damaged"]
    process = subprocess.Popen([*command, "--adapter", f"good:poet={adapter}"])
    while not (folder / "s").exists():
        assert process.poll() is None
        time.sleep(0.02)
    yield lambda: Client(folder / "s")
    assert process.poll() is None, "bad input ended the engine"
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    shutil.rmtree(folder)


def good(id_: str = "good", **more: Any) -> Generate:
    return Generate(**{"id": id_, "tokens": [1, 2, 3], "max_tokens": 8, "temperature": 0.0} | more)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tokens": []}, "bad_tokens"),
        ({"tokens": [100]}, "bad_tokens"),
        ({"tokens": [-1]}, "bad_tokens"),
        ({"tokens": [1] * 100_000}, "context_exceeded"),
        ({"max_tokens": BIG}, "context_exceeded"),
        ({"max_tokens": -1}, "bad_request"),
        ({"temperature": float("nan")}, "bad_request"),
        ({"temperature": -1.0}, "bad_request"),
        ({"top_k": -5}, "bad_request"),
        ({"top_p": 0.0}, "bad_request"),
        ({"min_p": 2.0}, "bad_request"),
        ({"repetition_penalty": 0.0}, "bad_request"),
        ({"presence_penalty": float("inf")}, "bad_request"),
        ({"logit_bias": {5: float("nan")}}, "bad_request"),
        ({"resumed_tokens": 9}, "bad_request"),
        ({"stop_tokens": [BIG]}, "bad_tokens"),
        ({"adapter": "poat"}, "unknown_adapter"),
        ({"model": "goood"}, "unknown_model"),
        ({"model": "damaged"}, "model_failed"),
    ],
)
def test_bad_input_is_refused_by_its_code_and_others_are_served(
    connect: Callable[[], Client], change: dict[str, Any], code: str
) -> None:
    me, neighbour = connect(), connect()
    before = neighbour.end_of(good(), "good")
    refused = me.end_of(good("bad", **change), "bad")
    assert isinstance(refused, Failed)
    assert refused.code == code
    assert neighbour.end_of(good(), "good") == before
    assert isinstance(me.end_of(good(adapter="poet"), "good"), Tokens)


def test_embeddings_of_a_damaged_model_are_refused_too(connect: Callable[[], Client]) -> None:
    refused = connect().end_of(Embed("e", [[1]], model="damaged"), "e")
    assert isinstance(refused, Failed)
    assert refused.code == "model_failed"
    assert "damaged" in refused.message


@pytest.mark.parametrize(
    "junk", [LENGTH.pack(MAX_FRAME_BYTES + 1), LENGTH.pack(3) + b"\xc1\xc1\xc1", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_frame_ends_its_own_connection_alone(connect: Callable[[], Client], junk: bytes) -> None:
    me, neighbour = connect(), connect()
    me.stream.sendall(junk)
    assert me.is_closed()
    assert isinstance(neighbour.end_of(good(), "good"), Tokens)
    assert isinstance(connect().ready, Ready)


def test_it_introduces_both_models_and_the_adapter(connect: Callable[[], Client]) -> None:
    ready = connect().ready
    assert isinstance(ready, Ready)
    assert [(each.model, each.adapters) for each in ready.models] == [("good", ["poet"]), ("damaged", [])]
