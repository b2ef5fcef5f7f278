"""Three real services, one depot: a good version goes through all, a bad one stops at the first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.lab.bench.bench_models import write_subject
from windlass.lab.bench.gateway_model import VOCABULARY, write_words
from windlass.lab.proofs.rollback.bad_versions import spoil
from windlass.registry.versions import Registry
from windlass.sites.replication.artifact_store import open_depot
from windlass.sites.replication.publish import Publisher
from windlass.sites.replication.puller import Puller
from windlass.sites.rollout.rollout_record import SitesRolloutRecord, load
from windlass.spec.shape import DecoderShape
from windlass.spec.sites import Sites, read_sites
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

NAMES = ("east", "north", "west")
WINDLASS = [sys.executable, "-m", "windlass.cli"]
PATIENCE_S = 300.0
SHAPE = DecoderShape(
    vocabulary=VOCABULARY, context=256, layers=1, width=32, heads=2, kv_heads=2, ffn_width=64, tied=True
)


@dataclass
class Visitors:
    """Clients that ask every site all the time."""

    urls: list[str]
    key: str
    answers: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(url, over)) for url in self.urls]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _ask(self, url: str, over: threading.Event) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            while not over.wait(0.5):
                body = {"model": "tiny", "prompt": "The anchor", "max_tokens": 4}
                reply = client.post("/v1/completions", json=body)
                if reply.status_code == httpx.codes.OK:
                    version = str(reply.json()["model"])
                    self.answers[version] = self.answers.get(version, 0) + 1
                else:
                    self.failures.append(f"{url}: {reply.status_code} {reply.text}")


@dataclass
class Net:
    """A home with three versions, its depot, and the sites that serve them."""

    folder: Path
    file: Path
    urls: list[str]
    key: str

    @property
    def sites(self) -> Sites:
        return read_sites(self.file)

    def rollout(self, model: str) -> subprocess.Popen[str]:
        words = ["sites", "rollout", str(self.file), model, "--json", "--home", str(self.folder / "home")]
        environment = {**os.environ, "WINDLASS_KEY": self.key}
        return subprocess.Popen([*WINDLASS, *words], stdout=subprocess.PIPE, text=True, env=environment)

    def record(self) -> SitesRolloutRecord | None:
        rule = self.sites.replicate
        assert rule is not None
        return load(open_depot(rule.depot), "tiny")

    def serving(self) -> list[str]:
        headers, found = {"authorization": f"Bearer {self.key}"}, []
        for url in self.urls:
            routes = httpx.get(f"{url}/admin/replicas", headers=headers, timeout=60).json()["routes"]["tiny"]
            found.append(max(routes["weights"], key=routes["weights"].get))
        return found


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, json.loads(said)


def register(home: Path) -> None:
    """A version, another that is as good, one whose numbers are none, and one that answers otherwise."""
    made, words = home / "made", write_words(home / "words")
    write_subject(SHAPE, made)
    (made / "tokenizer.json").write_bytes((words / "tokenizer.json").read_bytes())
    for note in (b"the first", b"the second"):
        writer = DirectoryWriter(StoreDir(home / note.decode()))
        for file in made.iterdir():
            if file.name != "manifest.json":
                writer.write(file.name, file.read_bytes())
        writer.write("note.txt", note)
        writer.commit({"kind": "model"})
        Registry(home).register("tiny", home / note.decode())
    for kind in ("nan", "shuffled"):  # of weights that nobody trained, others are as good
        Registry(home).register("tiny", spoil(kind, home / "the first", home / kind))
    Registry(home).promote("tiny@1")


@contextlib.contextmanager
def serving(home: Path) -> Iterator[subprocess.Popen[str]]:
    words = [*WINDLASS, "serve", "tiny", "--port", "0", "--threads", "1", "--home", str(home), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    folder = tmp_path_factory.mktemp("net")
    register(folder / "home")
    words = ["keys", "make", "ops", "--scope", "admin", "--scope", "use", "--home", str(folder / "east")]
    made = subprocess.run([*WINDLASS, *words, "--json"], capture_output=True, text=True, check=True)
    file = folder / "sites.toml"
    for name in NAMES[1:]:
        (folder / name).mkdir()
        (folder / name / "service.db").write_bytes((folder / "east" / "service.db").read_bytes())
    with contextlib.ExitStack() as stack:
        file.write_text(zone(folder, ["http://127.0.0.1:1"] * 3))
        replicate(read_sites(file), folder)
        processes = [stack.enter_context(serving(folder / name)) for name in NAMES]
        urls = [
            json.loads("".join(iter(p.stdout.readline, "}\n")) + "}")["url"] for p in processes if p.stdout
        ]
        file.write_text(zone(folder, urls))
        yield Net(folder, file, urls, json.loads(made.stdout)["key"])


def zone(folder: Path, urls: list[str]) -> str:
    sites = "".join(
        f'[[site]]\nname = "{name}"\naddresses = ["127.0.0.1"]\nurl = "{url}"\n'
        for name, url in zip(NAMES, urls, strict=True)
    )
    return f"""
zone = "llm.example.org"
[watch]
model = "tiny"
prompt = "The anchor"
within = "20s"
[replicate]
depot = "{folder / "depot"}"
[rollout]
settle = "1s"
kind = "blue_green"
policy = {{ seconds = "200ms", requests = 3, standby = "1s", slower_by_s = 0.5, doubt = 0.4 }}
{sites}"""


def replicate(sites: Sites, folder: Path) -> None:
    rule = sites.replicate
    assert rule is not None
    Publisher(folder / "home", open_depot(rule.depot, create=True), rule).step()
    for name in NAMES:
        Puller(folder / name, open_depot(rule.depot), name, rule).step()


@pytest.mark.long
def test_good_versions_go_through_all_sites_and_bad_ones_no_further_than_the_first(net: Net) -> None:
    visitors = Visitors(net.urls, net.key)
    with visitors.asking():
        process = net.rollout("tiny@2")
        until = time.monotonic() + PATIENCE_S
        while (record := net.record()) is None or record.sites["east"].phase != "done":
            assert process.poll() is None, record
            assert time.monotonic() < until, record
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert net.serving()[0] == "tiny@2"
        code, outcome = ended(net.rollout("tiny@2"))
        assert (code, outcome["state"]) == (0, "done"), outcome
        assert net.serving() == ["tiny@2"] * 3
        code, outcome = ended(net.rollout("tiny@3"))
        assert (code, outcome["state"]) == (1, "failed")
        assert "east" in outcome["reason"]
        assert [outcome["sites"][name]["phase"] for name in NAMES] == ["failed", "waiting", "waiting"]
        assert net.serving() == ["tiny@2"] * 3
    assert not visitors.failures
    assert set(visitors.answers) == {"tiny@1", "tiny@2"}


def test_a_site_whose_known_answer_is_wrong_serves_again_what_it_served_before(net: Net) -> None:
    before = net.serving()
    headers = {"authorization": f"Bearer {net.key}"}
    body = {"model": "tiny", "prompt": "The anchor", "max_tokens": 8, "temperature": 0}
    right = httpx.post(f"{net.urls[0]}/v1/completions", json=body, headers=headers, timeout=60).json()
    watch = f"[watch]\nexpect = {json.dumps(right['choices'][0]['text'])}"
    net.file.write_text(net.file.read_text().replace("[watch]", watch))
    code, outcome = ended(net.rollout("tiny@4"))
    assert (code, outcome["state"]) == (1, "failed"), outcome
    assert "gives an unexpected answer" in outcome["reason"]
    assert [outcome["sites"][name]["phase"] for name in NAMES] == ["undone", "waiting", "waiting"]
    assert net.serving() == before
