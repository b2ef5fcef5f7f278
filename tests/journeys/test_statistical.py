"""The older families through the same verbs: plan, train, eval, generate, serve, stop and resume."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.spec.serve import Serve
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
AsJson = Callable[..., Any]

FAMILIES = {
    "ngram": ["model.ngram.order=3"],
    "hmm": ["model.hmm.states=12", "train.steps=3"],
    "mlp": ["model.layers=1", "model.width=24", "train.steps=20"],
}
TEXT = "The value is a list of names"


def job(folder: Path, family: str) -> list[str]:
    """Write a job of a family on the small text; return how the command line names it."""
    (folder / f"{family}.toml").write_text(
        f'name = "{family}"\n[corpus]\nsources = ["topics.txt"]\ndocument = "paragraph"\n'
        "validation_share = 0.2\n[corpus.tokenizer]\nvocabulary = 400\n"
        f'[model]\nfamily = "{family}"\ncontext = 64\n[machine]\nthreads = 1\n'
    )
    return [f"{family}.toml", *(word for value in FAMILIES[family] for word in ("--set", value))]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_planned_trained_measured_and_served(
    family: str, windlass: Run, as_json: AsJson, folder: Path
) -> None:
    asked = job(folder, family)
    planned = as_json("plan", *asked)
    assert planned["shape"]["family"] == family
    assert planned["predicted"]["seconds"] > 0
    assert planned["predicted"]["memory_bytes"] > 1 << 20

    trained = as_json("train", *asked)
    assert trained["model"] == f"{family}@1"
    measured = as_json("eval", family)
    assert measured["loss"] == pytest.approx(trained["loss"], rel=1e-4)
    assert measured["perplexity"] < 400

    scored = as_json("eval", family, "--text", TEXT)
    assert "".join(token["text"] for token in scored["tokens"]) == TEXT
    assert scored["logprob"] == pytest.approx(sum(token["logprob"] for token in scored["tokens"]))

    (shown,) = as_json("jobs", "list")
    assert (shown["state"], shown["step"] == shown["effective"]["steps"]) == ("finished", True)
    assert ("learning_rate" in shown["effective"]) == (family == "mlp")
    path = Path(as_json("models", "show", family)["path"])
    offer = ServiceSpec(f"{family}@1", path, Serve(port=0, open=True, threads=1))
    with (
        Supervisor(offer, folder / "logs") as service,
        httpx.Client(base_url=service.url, timeout=30) as http,
    ):
        _check_served(http, family, [token["logprob"] for token in scored["tokens"]])
    if family == "hmm":
        _check_moved(family, windlass, as_json)


def _check_served(http: httpx.Client, family: str, logprobs: list[float]) -> None:
    """Write, score by echo as `eval --text` does, and embed or refuse to."""
    ask = {"model": family, "prompt": TEXT, "max_tokens": 12, "temperature": 0.7, "seed": 3}
    first, again = (http.post("/v1/completions", json=ask).json()["choices"][0] for _ in range(2))
    assert first["text"] == again["text"] != ""
    echoed = http.post("/v1/completions", json={**ask, "max_tokens": 0, "echo": True, "logprobs": 2}).json()
    told = echoed["choices"][0]["logprobs"]
    assert told["token_logprobs"][0] is None
    # The engine begins in mid-text, `eval --text` at the beginning: what is far from there agrees.
    assert told["token_logprobs"][-1] == pytest.approx(logprobs[-1], abs=0.3 if family == "hmm" else 1e-3)
    assert all(math.isfinite(value) for value in told["token_logprobs"][1:])
    vectors = http.post("/v1/embeddings", json={"model": family, "input": [TEXT]})
    assert vectors.status_code == (400 if family == "ngram" else 200), vectors.text
    (listed,) = http.get("/v1/models").json()["data"]
    assert (listed["family"], listed["context_length"]) == (family, 64)


def test_a_run_that_counts_is_stopped_and_resumed(
    windlass: Run, as_json: AsJson, folder: Path, environment: dict[str, str]
) -> None:
    asked = ["hmm.toml", "--set", "model.hmm.states=24", "--set", "train.steps=100000",
             "--set", "model.hmm.min_gain=0"]  # fmt: skip
    job(folder, "hmm")
    training = subprocess.Popen(
        [sys.executable, "-m", "windlass.cli", "train", *asked],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _until(lambda: _step(as_json) > 0)
    refused = windlass("jobs", "set", "hmm", "train.learning_rate=1", code=2)
    assert "belongs to what learns by gradients" in refused.stderr
    refused = windlass("jobs", "pause", "hmm", code=2)
    assert "not changed or paused" in refused.stderr
    windlass("jobs", "stop", "hmm", "--wait")
    training.wait(30)
    stopped = _step(as_json)
    more = subprocess.Popen(
        [sys.executable, "-m", "windlass.cli", "train", *asked, "--resume"],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _until(lambda: _step(as_json) > stopped)
    more.send_signal(signal.SIGINT)
    more.wait(30)


def _check_moved(family: str, windlass: Run, as_json: AsJson) -> None:
    """Export and import, which changes no byte of a table; what is for transformers is refused."""
    as_json("models", "export", family, "out")
    as_json("models", "import", "out", "--name", "again")
    before, after = (as_json("models", "show", name) for name in (family, "again"))
    files = [Path(shown["path"]) / "model.safetensors" for shown in (before, after)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert after["parameters"] == before["parameters"] > 0
    windlass("models", "compress", family, "--weights", "int8", code=2)


def _step(as_json: AsJson) -> int:
    listed = as_json("jobs", "list")
    return int(listed[0]["step"]) if listed else 0


def _until(holds: Callable[[], bool], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
