"""Nothing that a service writes to disk or to its terminal holds a key or a word of a prompt."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.registry.versions import Registry
from windlass.serve.records.audit_verify import verify
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
SHAPE = DecoderShape(vocabulary=300, context=256, layers=1, width=32, heads=4, kv_heads=2, ffn_width=48)


@pytest.fixture(autouse=True)
def registered(folder: Path) -> None:
    """A registry with one model that was never trained."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox"] * 9, trainer)
    writer = DirectoryWriter(StoreDir(folder / "made"))
    save_model(build(SHAPE, seed=5), writer)
    writer.write("tokenizer.json", tokenizer.to_str().encode())
    writer.commit({})
    Registry(folder / "home").register("base", folder / "made")


@contextmanager
def served(folder: Path, environment: dict[str, str], command: list[str]) -> Iterator[dict[str, Any]]:
    """Run a service; what it tells its terminal, apart from its first words, goes to a file."""
    with (folder / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=terminal, text=True
        )
        assert process.stdout is not None
        try:
            yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        finally:
            process.send_signal(signal.SIGTERM)
            (folder / "last words").write_text(process.communicate(timeout=PATIENCE_S)[0])


def ask_in_every_way(client: httpx.Client, word: str, key: str, wrong: str) -> list[int]:
    """Send a word and keys wherever a client may put them, rightly and wrongly."""
    head, other = {"authorization": f"Bearer {key}"}, {"authorization": f"Bearer {wrong}"}
    good = {"model": "base", "prompt": f"the {word}", "max_tokens": 4}
    chat = {"model": "base", "messages": [{"role": "user", "content": word}], "max_tokens": 4}
    replies = [
        client.post("/v1/completions", json=good, headers=head),
        client.post("/v1/completions", json=good | {"stream": True}, headers=head),
        client.post("/v1/chat/completions", json=chat, headers=head),
        client.post("/v1/embeddings", json={"model": "base", "input": [word]}, headers=head),
        client.post("/v1/tokenize", json={"model": "base", "text": word}, headers=head),
        client.post("/v1/completions", json=good | {"max_tokens": 10**9}, headers=head),
        client.post("/v1/completions", json=good | {word: 1}, headers=head),
        client.post("/v1/completions", json=good | {"model": word}, headers=head),
        client.post("/v1/completions", json=good | {"prompt": word * 2000}, headers=head),
        client.post("/v1/completions", content=b'{"prompt": "' + word.encode() + b"\xff", headers=head),
        client.post("/v1/completions", json=good | {"key": key}, headers=other),
        client.post("/v1/completions", json=good, headers={"authorization": f"Basic {key}"}),
        client.post(f"/v1/completions?api_key={key}", json=good),
        client.get(f"/v1/models/{word}", headers=head),
        client.get(f"/{word}/{key}", headers=head),
        client.get("/v1/models", headers=head | {"x-request-id": key, "user-agent": key, "referer": key}),
        client.get("/admin/keys", headers=head),
    ]
    return [reply.status_code for reply in replies]


def server_folder(url: str) -> list[Path]:
    """Return where the server of a database keeps its files, if it has one."""
    return [Path(host) for host in parse_qs(urlsplit(url).query).get("host", [])]


def test_no_file_and_no_terminal_holds_a_key_or_a_prompt(
    folder: Path,
    environment: dict[str, str],
    as_json: Callable[..., Any],
    leaks: Callable[..., list[str]],
    state_url: str,
) -> None:
    environment["WINDLASS_STATE"] = state_url
    word, wrong = secrets.token_hex(12), "wlk_" + secrets.token_urlsafe(32)
    command = [
        sys.executable, "-m", "windlass.cli", "serve", "base", "--port", "0", "--threads", "1", "--json",
        "--set", f"serve.access_log={folder / 'access.jsonl'}",
    ]  # fmt: skip
    with (
        served(folder, environment, command) as told,
        httpx.Client(base_url=told["url"], timeout=60) as client,
    ):
        key = as_json("keys", "make", "ada")["key"]
        codes = ask_in_every_way(client, word, key, wrong)
        assert codes[:3] == [200, 200, 200]
        assert max(codes) < 500, codes
        rotated = as_json("keys", "rotate", "ada")["key"]
        assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 401
        as_json("keys", "revoke", "ada")
        assert client.get("/v1/models", headers={"authorization": f"Bearer {rotated}"}).status_code == 401
        state = open_state(state_url)
        assert ApiKeys(state).find(told["key"]) is not None
        assert verify(state).ok
        state.close()
    for written in [folder, *server_folder(state_url)]:
        assert leaks(written, [word, key, rotated, wrong, told["key"]]) == []
