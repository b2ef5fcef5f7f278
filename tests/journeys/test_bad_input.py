"""What users get wrong: each a clear sentence, the right exit code, and nothing lost."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.spec.config import config_from_shape
from windlass.spec.shape import DecoderShape

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def told(done: "subprocess.CompletedProcess[str]") -> str:
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("windlass: ")]
    assert lines, done.stderr
    return done.stderr[done.stderr.index("windlass: ") :]


def test_an_empty_corpus(windlass: Run, folder: Path) -> None:
    (folder / "topics.txt").write_text("")
    assert "topics.txt" in told(windlass("train", "job.toml", code=2))
    (folder / "empty").mkdir()
    assert "empty" in told(windlass("up", "--corpus", "empty", "--once", code=2))


def test_a_corpus_of_binary_files(windlass: Run, folder: Path) -> None:
    (folder / "bin").mkdir()
    for number in range(3):
        (folder / "bin" / f"{number}.dat").write_bytes(os.urandom(500) + b"\x00")
    assert "binary" in told(windlass("up", "--corpus", "bin", "--once", code=2))


def test_a_corpus_that_is_not_there(windlass: Run) -> None:
    assert "nowhere.txt: no such file" in told(windlass("up", "--corpus", "nowhere.txt", "--once", code=2))


def test_a_misspelt_key(windlass: Run, folder: Path) -> None:
    (folder / "bad.toml").write_text("[train]\nbatch_sequence = 3\n")
    text = told(windlass("train", "bad.toml", code=2))
    assert "bad.toml: [train] unknown key 'batch_sequence'" in text
    assert "did you mean 'batch_sequences'?" in text


def test_a_truncated_checkpoint_is_passed_over(windlass: Run, folder: Path) -> None:
    windlass("train", "job.toml")
    run = folder / "home" / "runs" / "tiny" / "1"
    shutil.rmtree(run / "model")
    newest = sorted((run / "checkpoints").iterdir())[-1]
    os.truncate(newest / "part-00000.safetensors", 100)
    done = windlass("train", "job.toml", "--resume")
    assert "warning: checkpoint skipped" in done.stderr
    assert "resuming from step 30" in done.stderr


def test_a_port_in_use(windlass: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = told(windlass("up", "--corpus", "topics.txt", "--port", str(port), code=2))
        assert str(port) in text
        windlass("train", "job.toml")
        assert str(port) in told(windlass("serve", "tiny", "--port", str(port), code=2))


def test_a_model_directory_with_pickle_weights(windlass: Run, folder: Path) -> None:
    source = folder / "old"
    source.mkdir()
    shape = DecoderShape(family="gpt2", vocabulary=50, context=16, layers=1, width=8, heads=2, ffn_width=16)
    (source / "config.json").write_text(json.dumps(config_from_shape(shape)))
    (source / "pytorch_model.bin").write_bytes(b"\x80\x04")
    for verb in (["models", "import", "old"], ["serve", "./old", "--port", "0"]):
        text = told(windlass(*verb, code=2))
        assert "pickle" in text
        assert "safetensors" in text


def test_a_model_with_flipped_bytes_is_not_served(windlass: Run, folder: Path) -> None:
    windlass("train", "job.toml")
    weights = folder / "home" / "models" / "tiny" / "1" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-9] ^= 4
    weights.write_bytes(data)
    assert "differ" in told(windlass("serve", "tiny", "--port", "0", code=1))
    assert "differ" in told(windlass("models", "export", "tiny", "out", code=1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(windlass: Run, folder: Path, small_disk: Path) -> None:
    wide = ["--set", "model.width=128", "--set", "train.steps=12", "--home", str(small_disk / "home")]
    text = told(windlass("train", "job.toml", *wide, code=1))
    assert "no space left on the device" in text
    assert not list(small_disk.glob("home/runs/tiny/1/checkpoints/*/manifest.json"))
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    windlass("train", "job.toml", *wide, "--resume")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train"], "JOB.toml"),
        (["train", "none.toml"], "no such file"),
        (["train", "job.toml", "--set", "train.steps"], "table.key=value"),
        (["eval", "nobody"], "no model 'nobody'"),
        (["serve", "nobody@x"], "no model 'nobody'"),
        (["models", "promote", "nobody"], "no model 'nobody'"),
        (["models", "import", "absent"], "no such file or directory"),
        (["up", "--minutes", "0"], "--minutes"),
        (["up", "--minutes", "nan"], "--minutes"),
        (["up", "--model", "huge"], "huge"),
        (["up", "--name", "Two Words"], "may hold only"),
        (["serve", "nobody", "--port", "99999"], "99999"),
        (["corpus", "show", "nothing"], "nothing"),
        (["bench"], "WHAT"),
        (["init", "job.toml"], "exists already"),
    ],
)
def test_a_usage_error_ends_with_2_and_a_sentence(windlass: Run, args: list[str], expected: str) -> None:
    assert expected in told(windlass(*args, code=2))


@settings(max_examples=12, deadline=None)
@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=40))
def test_no_job_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    from windlass.cli.main import main

    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["plan", str(path), "--set", "corpus.sources=['/nowhere']"]) == 2
