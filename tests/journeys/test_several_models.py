"""One service with several models, an adapter and a damaged model: each asked in its own way, all at once."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from windlass.cli.serving.first_key import first_key
from windlass.cli.serving.serve import offer_of
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.registry.versions import Registry
from windlass.serve.records.state import state_url
from windlass.spec.serve import Serve
from windlass.spec.shape import BertShape, DecoderShape, Network
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
VOCABULARY = 300
SHAPES: dict[str, Network] = {
    "base": DecoderShape(
        vocabulary=VOCABULARY, context=128, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48
    ),
    "other": DecoderShape(
        family="gpt2", vocabulary=VOCABULARY, context=64, layers=2, width=32, heads=4, ffn_width=48
    ),
    "encoder": BertShape(vocabulary=VOCABULARY, context=64, layers=2, width=32, heads=4, ffn_width=48),
    "damaged": DecoderShape(
        vocabulary=VOCABULARY, context=64, layers=1, width=32, heads=4, kv_heads=2, ffn_width=48
    ),
}
TARGETS = {"self_attn.q_proj": (32, 32), "mlp.up_proj": (48, 32)}


def register(home: Path, name: str, tokenizer: Tokenizer) -> Path:
    writer = DirectoryWriter(StoreDir(home / "made" / name))
    save_model(build(SHAPES[name], seed=5), writer)
    writer.write("tokenizer.json", tokenizer.to_str().encode())
    writer.commit({})
    return Registry(home).register(name, home / "made" / name).path


def write_adapter(folder: Path) -> Path:
    random = np.random.default_rng(3)
    tensors = {}
    for layer in range(2):
        for target, (rows, columns) in TARGETS.items():
            at = f"base_model.model.model.layers.{layer}.{target}"
            tensors[f"{at}.lora_A.weight"] = random.standard_normal((4, columns)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = random.standard_normal((rows, 4)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox", "jumps over the lazy dog"] * 9, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with four models, of which one was damaged afterwards, and an adapter."""
    home = tmp_path_factory.mktemp("home")
    tokenizer = train_tokenizer()
    paths = {name: register(home, name, tokenizer) for name in SHAPES}
    weights = paths["damaged"] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 0x10
    weights.write_bytes(data)
    adapter = write_adapter(home / "poet")
    command = [sys.executable, "-m", "windlass.cli", "models", "import", str(adapter), "--home", str(home)]
    told = subprocess.check_output([*command, "--adapter-of", "base", "--json"], text=True)
    assert json.loads(told)["model"] == "poet@1"
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[httpx.Client]:
    serve = Serve(port=0, threads=1, state=state_url(home))
    bearer = {"authorization": f"Bearer {first_key(serve)}"}
    offer, _ = offer_of(home, list(SHAPES), ["poet=poet@1"], serve)
    with (
        Supervisor(offer, home / "logs") as service,
        httpx.Client(base_url=service.url, timeout=PATIENCE_S, headers=bearer) as client,
    ):
        yield client


def complete(client: httpx.Client, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": "the quick", "max_tokens": 12, "temperature": 0} | more
    return client.post("/v1/completions", json=body)


def text_of(client: httpx.Client, model: str, **more: Any) -> str:
    reply = complete(client, model, **more)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def embed(client: httpx.Client, model: str, inputs: list[str]) -> list[list[float]]:
    reply = client.post("/v1/embeddings", json={"model": model, "input": inputs})
    assert reply.status_code == 200, reply.text
    return [entry["embedding"] for entry in reply.json()["data"]]


def test_every_model_answers_as_itself(client: httpx.Client) -> None:
    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed == ["base@1", "base@1:poet", "other@1", "encoder@1", "damaged@1"]
    answers = {name: text_of(client, name) for name in ("base", "base:poet", "other")}
    assert len(set(answers.values())) == 3
    assert text_of(client, "poet") == answers["base:poet"]


def test_company_changes_no_answer(client: httpx.Client) -> None:
    names = ["base", "poet", "other"]
    alone = {name: text_of(client, name, max_tokens=30) for name in names}
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda name: (name, text_of(client, name, max_tokens=30)), names * 4))
    assert all(text == alone[name] for name, text in together)


def test_a_damaged_model_is_reported_and_the_others_continue(client: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        failing = pool.submit(complete, client, "damaged")
        fine = [pool.submit(text_of, client, name) for name in ("base", "other", "poet")]
        assert all(answer.result() for answer in fine)
        reply = failing.result()
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (500, "engine_failed")
    assert "'damaged@1' cannot be loaded" in error["message"]
    assert text_of(client, "base")


def test_vectors_come_from_encoders_and_writers_alike(client: httpx.Client) -> None:
    inputs = ["the fox", "over the lazy dog jumps the quick brown fox", "dog"] * 30
    for name in ("base", "encoder"):
        together = embed(client, name, inputs)
        assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-4) for vector in together)
        for alone, vector in zip(embed(client, name, inputs[:1]), together, strict=False):
            assert np.allclose(alone, vector, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "change", "code"),
    [
        ("base", {"max_tokens": 10**9}, "context_length_exceeded"),
        ("base", {"prompt": "the " * 200_000}, "context_length_exceeded"),
        ("base", {"prompt": [10**6]}, "invalid_value"),
        ("base", {"temperature": -1}, "invalid_value"),
        ("base", {"top_p": 0}, "invalid_value"),
        ("base", {"logit_bias": {"99999": 1}}, "invalid_value"),
        ("base:prose", {}, "model_not_found"),
        ("other:poet", {}, "model_not_found"),
        ("encoder", {}, "wrong_model_kind"),
    ],
)
def test_what_cannot_be_is_refused_while_others_are_served(
    client: httpx.Client, model: str, change: dict[str, Any], code: str
) -> None:
    with ThreadPoolExecutor(2) as pool:
        fine = pool.submit(text_of, client, "base", max_tokens=40)
        reply = complete(client, model, **change)
        assert 400 <= reply.status_code < 500
        assert reply.json()["error"]["code"] == code
        assert fine.result()


def test_a_stop_string_is_found_across_tokens(client: httpx.Client) -> None:
    whole = text_of(client, "base", max_tokens=40)
    stop = whole[5:9]
    assert text_of(client, "base", max_tokens=40, stop=stop) == whole[: whole.index(stop)]


def test_a_stream_is_the_whole_answer_in_pieces(client: httpx.Client) -> None:
    body = {"model": "base", "prompt": "the", "max_tokens": 60, "temperature": 1.0, "seed": 4, "n": 2}
    whole = [choice["text"] for choice in client.post("/v1/completions", json=body).json()["choices"]]
    pieces = ["", ""]
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    pieces[choice["index"]] += choice["text"]
    assert pieces == whole


def test_scores_of_prompt_and_answer_agree(client: httpx.Client) -> None:
    prompt = [5, 77, 130, 42, 9]
    echoed = complete(client, "base", prompt=prompt, max_tokens=0, echo=True, logprobs=0).json()
    for length in range(1, len(prompt)):
        forced = {str(prompt[length]): 100}
        made = complete(client, "base", prompt=prompt[:length], max_tokens=1, logprobs=0, logit_bias=forced)
        (written,) = made.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert written == pytest.approx(echoed["choices"][0]["logprobs"]["token_logprobs"][length], abs=1e-4)


def test_little_memory_serves_all_models_in_turn(home: Path, client: httpx.Client) -> None:
    wanted = {name: text_of(client, name) for name in ("base", "other")}
    offer, _ = offer_of(
        home, ["base", "other", "encoder"], [], Serve(port=0, threads=1, memory=smallest(), open=True)
    )
    with (
        Supervisor(offer, home / "logs") as service,
        httpx.Client(base_url=service.url, timeout=PATIENCE_S) as small,
    ):
        for _ in range(2):
            assert {name: text_of(small, name) for name in wanted} == wanted
            assert len(embed(small, "encoder", ["the fox"])[0]) == 32


def smallest() -> int:
    """Return memory for the largest of the models, not for two of them."""
    return 1 << 20
