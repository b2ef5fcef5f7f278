"""`windlass models compress` from the terminal to the registry, with the processes that do the work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from windlass.cli.main import main
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.weights import load_weights
from windlass.registry.versions import Registry
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

SHAPE = DecoderShape(vocabulary=300, context=64, layers=2, width=64, heads=4, kv_heads=2, ffn_width=96)
TEXT = "".join(
    f"In the year {n} the ship {n * 7 % 97} sailed past the light, and nobody saw it.\n" for n in range(900)
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    writer = DirectoryWriter(StoreDir(tmp_path / "made"))
    save_model(build(SHAPE, seed=5), writer, special_tokens={"eos_token_id": 0})
    writer.write("tokenizer.json", tokenizer.to_str().encode())
    writer.commit({})
    (tmp_path / "text.txt").write_text(TEXT)
    Registry(tmp_path / "home").register("ship", tmp_path / "made")
    return tmp_path / "home"


def output_of(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(list(args)) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err


def test_a_smaller_version_says_what_it_was_made_from_and_what_it_costs(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(home.parent / "text.txt")
    shown = output_of(
        capsys, "models", "compress", "ship@1", "--weights", "int4", "--calibrate", text, "--text", text,
        "--name", "dinghy", "--json", "--home", str(home),
    )  # fmt: skip
    made: dict[str, Any] = json.loads(shown)
    facts = made["compressed"]
    assert (made["model"], made["precision"], facts["from"]) == ("dinghy@1", "int4", "ship@1")
    assert facts["bytes_after"] < facts["bytes_before"] / 3
    assert facts["before"]["tokens"] == facts["after"]["tokens"] > 0
    assert facts["after"]["perplexity"] == pytest.approx(facts["before"]["perplexity"], rel=0.05)
    assert load_weights(made["path"]).precision == "int4"
    assert "int4" in output_of(capsys, "models", "list", "--home", str(home))
    assert sorted(p.name for p in home.iterdir() if p.name.startswith("compress-")) == []
    refused = output_of(
        capsys, "models", "export", "dinghy", str(home.parent / "out"), "--home", str(home), code=2
    )
    assert "--dequantise" in refused
    assert not (home.parent / "out").exists()
    output_of(
        capsys, "models", "export", "dinghy", str(home.parent / "out"), "--dequantise", "--home", str(home)
    )
    assert load_weights(home.parent / "out").precision == "float32"


def test_a_model_without_tokenizer_is_compressed_unmeasured(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(build(SHAPE, seed=1), home.parent / "bare")
    shown = output_of(
        capsys, "models", "compress", str(home.parent / "bare"), "--weights", "bfloat16", "--home", str(home)
    )
    assert "registered as bare@1" in shown
    assert "not measured" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("ship", "--weights", "int3"), "invalid choice: 'int3'"),
        (("ship", "--weights", "int8", "--name", "No Name"), "is not a model name"),
        (("shop", "--weights", "int8"), "did you mean 'ship'"),
        (("ship", "--weights", "int8", "--calibrate", "nowhere.txt"), "nowhere.txt"),
        (("ship", "--weights", "int8", "--text", "nowhere.txt"), "nowhere.txt"),
        (("ship", "--weights", "bfloat16", "--calibrate", "nowhere.txt"), "takes no text"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    home: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert message in output_of(capsys, "models", "compress", *args, "--home", str(home), code=2)
    assert [str(v) for v in Registry(home).versions("ship")] == ["ship@1"]


def test_an_interrupted_compression_leaves_nothing(home: Path) -> None:
    args = ["models", "compress", "ship", "--weights", "int8", "--text", str(home.parent / "text.txt")]
    process = subprocess.Popen([sys.executable, "-m", "windlass.cli", *args, "--home", str(home)])
    while not list(home.glob("compress-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert [str(v) for v in Registry(home).versions("ship")] == ["ship@1"]
    assert list(home.glob("compress-*")) == []
