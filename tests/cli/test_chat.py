"""`windlass chat` and `windlass up --model`, with real services of small models."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from windlass.cli.main import main
from windlass.cli.serving.chat import check_chat_template, has_chat_template

WIDTH, VOCABULARY, CONTEXT = 16, 64, 60_000
LAYER = "model.layers.0"
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip
SIZES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "model.norm.weight": (WIDTH,),
    f"{LAYER}.input_layernorm.weight": (WIDTH,),
    f"{LAYER}.post_attention_layernorm.weight": (WIDTH,),
    **{f"{LAYER}.self_attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkvo"},
    f"{LAYER}.mlp.gate_proj.weight": (2 * WIDTH, WIDTH),
    f"{LAYER}.mlp.up_proj.weight": (2 * WIDTH, WIDTH),
    f"{LAYER}.mlp.down_proj.weight": (WIDTH, 2 * WIDTH),
}
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and a chat template, which says words at random."""
    folder = tmp_path_factory.mktemp("chat") / "parrot"
    folder.mkdir()
    draw = np.random.default_rng(1)
    weights = {name: draw.normal(0, 0.3, size).astype(np.float32) for name, size in SIZES.items()}
    save_file(weights, folder / "model.safetensors")
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    words.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "windlass.cli", *args]


def run(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), input=text, capture_output=True, text=True, timeout=300, check=False
    )


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    return capsys.readouterr().err


def test_a_model_without_a_template_is_refused_with_what_to_use(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (plain / name).write_bytes((model / name).read_bytes())
    said = refusal(capsys, "chat", str(plain), "--home", str(tmp_path))
    assert "plain has no chat template" in said
    assert "windlass generate" in said


def test_a_template_is_found_wherever_it_may_be(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert has_chat_template(tmp_path)


def test_a_model_that_only_knows_the_tokens_of_roles_gets_a_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": ["<|user|>", "<|assistant|>"]}')
    check_chat_template("poems@1", tmp_path, said.append)
    assert "has no chat template" in said[0]
    assert "windlass generate poems@1" in said[1]


def test_a_chat_needs_a_model_or_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give a MODEL" in refusal(capsys, "chat")


@pytest.mark.parametrize("size", ["5M", "1.5B", "300k", "7000000"])
def test_a_size_given_as_the_model_is_refused_with_the_right_option(
    size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "up", "--model", size, "--home", str(tmp_path))
    assert f"--parameters {size}" in said


@pytest.mark.parametrize(
    "options", [["--corpus", "stdlib"], ["--parameters", "5M"], ["--fresh"]], ids=lambda o: o[0]
)
def test_options_of_training_are_refused_next_to_a_model(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "up", "--model", "smollm2", *options, "--home", str(tmp_path))
    assert "leave one of them out" in said


def test_an_unknown_model_gets_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "up", "--model", "smolm2", "--home", str(tmp_path), "--once")
    assert "did you mean 'smollm2'?" in said


@pytest.mark.slow
def test_one_prompt_gets_one_answer(model: Path, tmp_path: Path) -> None:
    done = run(
        "chat", str(model), "--prompt", "w1 w2", "--tokens", "8", "--seed", "3", "--json",
        "--home", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["model"], answer["prompt"], answer["completion_tokens"]) == ("parrot", "w1 w2", 8)


@pytest.mark.slow
def test_the_lines_of_a_pipe_are_one_conversation(model: Path, tmp_path: Path) -> None:
    options = ["--tokens", "4", "--temperature", "0", "--home", str(tmp_path), "--system", "w9"]
    done = run("chat", str(model), *options, "--json", text="w1\nw2\n/reset\nw1\n")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["prompt"] for each in answers] == ["w1", "w2", "w1"]
    assert answers[1]["prompt_tokens"] > answers[0]["prompt_tokens"]
    assert answers[2] == answers[0]


class Terminal:
    """A command in a terminal of its own, and what it has shown since the last match."""

    def __init__(self, *args: str) -> None:
        self._end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*args), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, wanted: str) -> None:
        """Read until the terminal shows this, and forget what came before it."""
        until = time.monotonic() + PATIENCE_S
        while wanted not in self._shown:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._end], [], [], max(0.0, left))
            assert ready, f"'{wanted}' is not in {self._shown[-2000:]!r}"
            try:
                self._shown += os.read(self._end, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the terminal closed after {self._shown[-2000:]!r}") from None
        self._shown = self._shown.partition(wanted)[2]

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        os.close(self._end)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_the_answer_and_ctrl_d_ends(model: Path, tmp_path: Path) -> None:
    options = ["--home", str(tmp_path), "--tokens", str(CONTEXT - 100), "--temperature", "1"]
    with closing(Terminal("chat", str(model), *options)) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("w1 w2\n")
        terminal.wait_for("w1 w2")
        terminal.wait_for("w")  # the answer has begun
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("(stopped)")
        terminal.wait_for(">>> ")
        terminal.type("/reset\n")
        terminal.wait_for("forgotten")
        terminal.type("\x04")
        terminal.wait_for("\n")
        assert terminal.process.wait(PATIENCE_S) == 0
    assert "w1 w2" in (tmp_path / "cache" / "chat-history").read_text()


@pytest.mark.slow
def test_a_running_service_is_talked_to_by_its_address(model: Path, tmp_path: Path) -> None:
    serving = command("serve", str(model), "--port", "0", "--no-keys", "--json", "--home", str(tmp_path))
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            shown = ""
            for line in service.stdout:
                shown += line
                if line.startswith("}"):
                    break
            url = json.loads(shown)["url"]
            done = run("chat", "--url", url, "--prompt", "w1", "--tokens", "5", "--json")
            assert json.loads(done.stdout)["completion_tokens"] == 5
        finally:
            service.send_signal(signal.SIGINT)
            service.wait(60)


@pytest.mark.slow
def test_up_serves_a_directory_as_a_model_without_training(model: Path, tmp_path: Path) -> None:
    done = run("up", "--model", str(model), "--once", "--json", "--home", str(tmp_path))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["model"], answer["prompt"]) == ("parrot@1", "What is the capital of France?")
    assert answer["text"]
    again = run("up", "--model", "parrot", "--once", "--json", "--home", str(tmp_path))
    assert json.loads(again.stdout)["model"] == "parrot@1"
