"""The process entry point: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from windlass.models.__main__ import main
from windlass.models.build import build
from windlass.models.huggingface import load_model, save_model
from windlass.spec.protocol.entrypoint import exit_code_of
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir

SHAPE = DecoderShape(family="gpt2", vocabulary=31, context=16, layers=1, width=12, heads=2, ffn_width=20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    save_model(build(SHAPE, seed=1), folder, special_tokens={"eos_token_id": 4})
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "run_me.py").write_text("raise SystemExit(9)")
    return folder


def test_a_converted_directory_is_whole_and_holds_the_tokenizer(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert exit_code_of(main, ["convert", str(source), str(target)]) == 0
    done = json.loads(capsys.readouterr().out)["done"]
    assert (done["family"], done["parameters"]) == ("gpt2", SHAPE.parameters)
    assert DecoderShape.model_validate(done["shape"]) == SHAPE
    assert sorted(verify(StoreDir(target)).files) == done["files"]
    assert done["files"] == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert json.loads((target / "config.json").read_text())["eos_token_id"] == 4
    one, two = load_model(source), load_model(target)
    assert all(torch.equal(one.state_dict()[n], t) for n, t in two.state_dict().items())


def test_a_target_that_holds_something_is_left_alone(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "precious").write_text("mine")
    assert exit_code_of(main, ["convert", str(source), str(tmp_path / "target")]) == 2
    assert error_of(capsys)["kind"] == "InUse"
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["precious"]


def test_a_wrong_source_ends_with_one_line_of_json_and_no_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(main, ["convert", str(tmp_path / "absent"), str(tmp_path / "target")]) == 2
    assert error_of(capsys)["kind"] == "NotFound"
    assert not (tmp_path / "target").exists()


def test_damaged_weights_are_our_exit_code_1(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "model.safetensors").write_bytes(b"\x08")
    assert exit_code_of(main, ["convert", str(source), str(tmp_path / "target")]) == 1
    assert error_of(capsys)["kind"] == "Damaged"


def test_wrong_arguments_are_reported_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(main, ["convert"]) == 2
    assert "source, target" in error_of(capsys)["message"]


def test_a_gptq_directory_is_written_with_plain_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = DecoderShape(vocabulary=32, context=16, layers=1, width=16, heads=2, kv_heads=2, ffn_width=32)
    folder = tmp_path / "packed"
    save_model(build(shape, seed=1), folder)
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.0.mlp.down_proj"
    del tensors[f"{name}.weight"]
    tensors |= {
        f"{name}.qweight": torch.full((4, 16), 0x22222222, dtype=torch.int32),
        f"{name}.qzeros": torch.zeros((2, 2), dtype=torch.int32),
        f"{name}.scales": torch.full((2, 16), 0.5),
    }
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    packing = {"quant_method": "gptq", "bits": 4, "group_size": 16}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": packing}))
    assert exit_code_of(main, ["convert", str(folder), str(tmp_path / "target")]) == 0
    assert json.loads(capsys.readouterr().out)["done"]["dequantised"] == "gptq"
    weights = load_model(tmp_path / "target").state_dict()
    assert torch.equal(weights["layers.0.ffn.down.weight"], torch.full((16, 32), 0.5))  # 0.5 * (2 - 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_the_entry_point_works_as_a_process(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windlass.models", "convert", str(source), str(tmp_path / "target")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["done"]["parameters"] == SHAPE.parameters


def error_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    error: dict[str, Any] = json.loads(lines[0])["error"]
    return error
