"""The examples of docs/sdk-python.md run, in order, against a live service and a live control API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from windlass.sdk import RunStatus

PAGE = Path(__file__).parents[2] / "docs" / "sdk-python.md"


def blocks() -> list[tuple[int, str]]:
    """Return the Python blocks of the page, each with the line that it begins at."""
    text = PAGE.read_text("utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in found]


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    start_gateway: Any,
    given_keys: Any,
    control: tuple[str, str],
    start: Any,
    tell: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from windlass.serve.gateway.edge.access import Access

    first, second = (start_gateway(name="poems@1", access=Access(keys=given_keys.keys)) for _ in range(2))
    first.service.database = given_keys.keys._database
    first.wait_until("/readyz", 200)
    second.wait_until("/readyz", 200)
    folder = start()
    tell(folder, event="step", step=30, steps=100, loss=2.5, tokens_per_s=9.0)
    tell(folder, event="evaluation", step=30, loss=2.6)
    url, key = control
    addresses = {
        "http://127.0.0.1:8000": first.url,
        "https://a.example": first.url,
        "https://b.example": second.url,
        "http://127.0.0.1:8100": url,
        "THE-KEY": key,
    }
    monkeypatch.setenv("WINDLASS_KEY", given_keys.tokens["user"])
    monkeypatch.chdir(tmp_path)
    world: dict[str, Any] = {"__name__": "page"}
    assert len(blocks()) >= 10
    for line, code in blocks():
        for written, real in addresses.items():
            code = code.replace(written, real)
        exec(compile("\n" * line + code, str(PAGE), "exec"), world)
    said = capsys.readouterr().out
    assert "Once upon a time" in said, "the scripted engine repeats its prompt"
    assert "poems/1" in said
    assert isinstance(world["run"], RunStatus)
    for name in ("client", "patient", "both", "shared", "jobs", "plans"):
        world[name].close()
