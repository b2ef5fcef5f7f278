"""corpus -> plan -> train -> registry -> serve, with the official OpenAI client at the end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import transformers

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
AsJson = Callable[..., Any]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "windlass.cli", *args]


@contextlib.contextmanager
def serving(folder: Path, environment: dict[str, str], *args: str) -> Iterator[dict[str, Any]]:
    """Serve a model and yield what `serve --json` printed."""
    process = subprocess.Popen(
        command("serve", *args, "--port", "0", "--json"),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the service ended before it answered"
            text += line
        yield {**json.loads(text), "process": process}
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        process.stdout.close()


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`, from the kernel's own tables."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_corpus_becomes_a_served_model(
    windlass: Run, as_json: AsJson, folder: Path, environment: dict[str, str]
) -> None:
    built = as_json("corpus", "build", "job.toml")
    assert as_json("corpus", "stats", "job.toml")
    assert built
    planned = as_json("plan", "job.toml")
    assert (planned["steps"], planned["shape"]["width"]) == (40, 32)

    trained = as_json("train", "job.toml")
    assert trained["model"] == "tiny@1"
    assert trained["step"] == 40

    measured = as_json("eval", "tiny")
    assert measured["loss"] == pytest.approx(trained["loss"], rel=1e-4)
    listed = as_json("models", "list")
    assert [(m["model"], m["parameters"]) for m in listed] == [("tiny@1", planned_parameters(planned))]
    shown = as_json("models", "show", "tiny@1")
    assert shown["lineage"]["corpus_digest"] == planned["corpus_digest"]

    first = as_json("generate", "tiny", "--prompt", "The ", "--tokens", "12")
    again = as_json("generate", "tiny", "--prompt", "The ", "--tokens", "12")
    assert first["text"] == again["text"] != ""

    windlass("models", "promote", "tiny@1")
    with serving(folder, environment, "tiny@prod") as service:
        talk(service["url"], service["key"], first["text"])
        windlass("models", "delete", "tiny@1", code=2)
        survive_a_dead_engine(service)

    windlass("models", "export", "tiny", "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    assert model.num_parameters() == planned_parameters(planned)
    assert tokenizer.decode(tokenizer("The value")["input_ids"]) == "The value"
    windlass("models", "import", "out", "--name", "back")
    assert as_json("eval", "back", "--corpus", planned["corpus"])["loss"] == pytest.approx(
        measured["loss"], rel=1e-6
    )


def planned_parameters(planned: dict[str, Any]) -> int:
    from windlass.spec.run import Run

    return Run.model_validate(planned).shape.parameters


def talk(url: str, key: str, expected: str) -> None:
    """Drive the service with the official client."""
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="another").models.list()
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    assert "tiny@1" in [m.id for m in client.models.list()]
    done = client.completions.create(
        model="tiny", prompt="The ", max_tokens=12, temperature=0.8, top_p=1.0, seed=1, logprobs=2
    )
    assert done.choices[0].text == expected
    assert done.usage is not None
    assert done.usage.completion_tokens <= 12
    assert done.choices[0].logprobs is not None
    pieces = client.completions.create(
        model="tiny@1", prompt="The ", max_tokens=12, temperature=0.8, top_p=1.0, seed=1, stream=True
    )
    assert "".join(p.choices[0].text for p in pieces if p.choices) == expected
    chat = client.chat.completions.create(
        model="tiny@prod", messages=[{"role": "user", "content": "What is a list?"}], max_tokens=8
    )
    assert chat.choices[0].message.role == "assistant"
    vectors = client.embeddings.create(model="tiny", input=["a list", "a tuple"])
    assert len(vectors.data) == 2
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="tinny", prompt="x")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="x", max_tokens=10**9)


def survive_a_dead_engine(service: dict[str, Any]) -> None:
    """Kill the engine: the service starts another one and answers again."""
    processes = children_of(service["process"].pid)
    (engine,) = [p for p in processes if b"serve.engine" in Path(f"/proc/{p}/cmdline").read_bytes()]
    os.kill(engine, signal.SIGKILL)
    client = openai.OpenAI(base_url=f"{service['url']}/v1", api_key=service["key"], max_retries=0)
    deadline = time.monotonic() + 60
    while True:
        try:
            client.completions.create(model="tiny", prompt="The ", max_tokens=2)
        except openai.APIError:
            assert time.monotonic() < deadline, "the engine did not come back"
            time.sleep(0.2)
        else:
            break
    assert engine not in children_of(service["process"].pid)


def start(folder: Path, environment: dict[str, str], *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*args), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def await_checkpoint(home: Path, process: "subprocess.Popen[str]") -> None:
    while not list(home.glob("runs/*/1/checkpoints/step-*/manifest.json")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_continues_where_it_stopped(
    windlass: Run, as_json: AsJson, folder: Path, environment: dict[str, str], how: signal.Signals
) -> None:
    options = ["job.toml", "--set", "train.steps=400"]
    process = start(folder, environment, "train", *options)
    await_checkpoint(folder / "home", process)
    workers = children_of(process.pid)
    assert workers
    process.send_signal(how)
    code = process.wait(60)
    assert code == (-9 if how == signal.SIGKILL else 130)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a training process outlived its parent"
        time.sleep(0.05)
    (journal,) = folder.glob("home/runs/tiny/1/journal.jsonl")
    windlass("train", *options, "--resume", "--set", "seed=5", code=2)
    resumed = as_json("train", *options, "--resume")
    assert resumed["step"] == 400
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [e["event"] for e in events].count("resumed") == 1
    windlass("train", *options, "--resume", code=2)


def test_two_processes_cannot_do_one_run(windlass: Run, folder: Path, environment: dict[str, str]) -> None:
    options = ["job.toml", "--set", "train.steps=4000"]
    process = start(folder, environment, "train", *options)
    await_checkpoint(folder / "home", process)
    refused = windlass("train", *options, "--resume", code=2)
    assert "is in use by process" in refused.stderr
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_up_does_everything_and_does_it_once(
    as_json: AsJson, windlass: Run, folder: Path, environment: dict[str, str]
) -> None:
    options = ["up", "--corpus", "topics.txt", "--minutes", "0.1", "--once"]
    first = as_json(*options)
    assert first["model"] == "up@1"
    assert first["text"]
    again = as_json(*options)
    assert (again["model"], again["text"]) == (first["model"], first["text"])
    assert as_json(*options, "--fresh")["model"] == "up@2"


def test_up_interrupted_in_training_continues(
    as_json: AsJson, folder: Path, environment: dict[str, str]
) -> None:
    options = ["up", "--corpus", "topics.txt", "--minutes", "0.4", "--once"]
    process = start(folder, environment, *options)
    while not list(folder.glob("home/runs/up/1/journal.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert as_json(*options)["model"] == "up@1"
    assert len(list(folder.glob("home/runs/up/*/run.json"))) == 1


def test_a_model_can_be_trained_further(as_json: AsJson, folder: Path) -> None:
    as_json("train", "job.toml")
    (folder / "more.toml").write_text(
        'name = "more"\n[corpus]\nsources = ["topics.txt"]\ndocument = "paragraph"\nvalidation_share = 0.2\n'
        '[model]\nstart_from = "tiny@1"\n[train]\nsteps = 5\nlearning_rate = 1e-5\n[machine]\nthreads = 1\n'
    )
    before = as_json("eval", "tiny")["loss"]
    more = as_json("train", "more.toml")
    assert more["model"] == "more@1"
    assert more["loss"] == pytest.approx(before, abs=0.15)
