"""The Java code of docs/sdk-java.md runs as it stands, against a live service."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from windlass.completion.write import FullCall, write_java
from windlass.serve.gateway.edge.access import Access

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "sdk-java.md"
SITE = "http://127.0.0.1:8000"
OTHER = "https://eu.example:8000"
PATIENCE_S = 60.0
BLOCK = re.compile(r"^```java\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
IMPORTS = "dev.windlass java.time java.util java.util.concurrent"


def program(number: int, block: str) -> str:
    """Make a program of a block, as the page says that its blocks are meant."""
    imports = "".join(f"import {name}.*;\n" for name in IMPORTS.split())
    return f"{imports}final class Block{number} {{\nstatic void run() throws Exception {{\n{block}}}\n}}\n"


@pytest.fixture
def site(start_gateway: Any, given_keys: Any) -> str:
    """A service with keys that serves poems@1, as the page has it."""
    gateway = start_gateway(name="poems@1", access=Access(keys=given_keys.keys))
    gateway.wait_until("/readyz", 200)
    url: str = gateway.url
    return url


def test_every_block_runs_and_prints_what_the_page_says(
    jdk: Any, site: str, given_keys: Any, tmp_path: Path
) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 8
    calls = "".join(f'System.out.println("--- {n}"); Block{n}.run();\n' for n in range(len(blocks)))
    (tmp_path / "Page.java").write_text(
        f"final class Page {{ public static void main(String[] a) throws Exception {{\n{calls}}} }}\n"
    )
    for number, (block, _) in enumerate(blocks):
        live = block.replace(SITE, site).replace(OTHER, site)
        (tmp_path / f"Block{number}.java").write_text(program(number, live))
    compiled = subprocess.run(
        [
            "javac",
            "-J-XX:TieredStopAtLevel=1",
            "-J-XX:+UseSerialGC",
            "--release",
            "17",
            "-cp",
            jdk.path,
            "-d",
            tmp_path,
            *tmp_path.glob("*.java"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    told = jdk.run("-cp", f"{jdk.path}:{tmp_path}", "Page", key=given_keys.tokens["user"])
    printed = re.split(r"^--- \d+\n", told, flags=re.MULTILINE)[1:]
    for (block, wanted), found in zip(blocks, printed, strict=True):
        assert found.strip(), f"this prints nothing:\n{block}"
        if wanted:
            assert found.replace(site, SITE) == wanted, block


def test_the_java_that_completed_calls_are_written_in_runs(
    jdk: Any, site: str, given_keys: Any, tmp_path: Path
) -> None:
    body = {"model": "poems", "prompt": 'the "lazy"\n\\dog', "max_tokens": 3, "stream": True}
    source = tmp_path / "Call.java"
    source.write_text(write_java(FullCall("POST", f"{site}/v1/completions", body)))
    told = jdk.run(str(source), key=given_keys.tokens["user"])
    assert told.count("data: {") == 3
    assert "data: [DONE]" in told
