"""`windlass complete` offline and beside a server, and shells that complete our commands."""

from __future__ import annotations

import ast
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from windlass.cli.complete.completion import SCRIPTS
from windlass.cli.main import main
from windlass.cli.verb_cache import folder, remembered

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"
"""Nobody listens on the port of discard."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with models, a job file, and a cache of its own."""
    for version in ("poems/1", "poems/2", "essays/1", "half/1"):
        path = tmp_path / "home" / "models" / version
        path.mkdir(parents=True)
        if version != "half/1":
            (path / "manifest.json").write_text("{}")
    (tmp_path / "home" / "models" / "poems" / "aliases.json").write_text('{"prod": 2}')
    (tmp_path / "home" / "runs" / "poems").mkdir(parents=True)
    (tmp_path / "poems.toml").write_text("")
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["complete", *argv, "--json", "--server", NOBODY]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_a_server_this_installation_answers(capsys: pytest.CaptureFixture[str]) -> None:
    offer = told(capsys, '{"model": "po')
    assert [each["text"] for each in offer["candidates"]] == ["poems", "poems@2", "poems@1", "poems@prod"]
    assert "does not answer" in offer["source"]
    assert json.loads(offer["fixed"])["model"] == "poems"


def test_the_cursor_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    offer = told(capsys, '{"temp": 1, "model": "poems"}', "--cursor", "6")
    assert offer["candidates"][0]["insert"] == '"temperature"'
    assert offer["explains"]["name"] == "temperature"


def test_our_own_commands_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    offer = told(capsys, "windlass serv poems --precision in")
    assert offer["candidates"][0]["text"] == "int8"
    assert offer["fixed"].startswith("windlass serve poems")
    assert told(capsys, "windlass eval ")["call"] == {"cli": "windlass eval essays"}


def test_people_see_candidates_slips_and_the_whole_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["complete", '{"model": "poems", "promt": "Hi", "temperature": "0.7"', "--server", NOBODY]) == 0
    )
    shown = capsys.readouterr().out
    assert "fix: 'promt' is unknown here; 'prompt' is meant" in shown
    assert '{"model": "poems", "prompt": "Hi", "temperature": 0.7}' in shown
    assert f"curl {NOBODY}/v1/completions" in shown


@pytest.mark.parametrize("language", ["curl", "python", "javascript", "java", "json"])
def test_only_the_whole_call_is_printed(capsys: pytest.CaptureFixture[str], language: str) -> None:
    assert main(["complete", '{"prompt": "It\'s', "--write", language, "--server", NOBODY]) == 0
    shown = capsys.readouterr().out
    assert "essays" in shown
    if language == "python":
        ast.parse(shown)
    if language == "json":
        assert json.loads(shown)["prompt"] == "It's"


def test_a_servers_own_document_and_models_are_fetched(
    own_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", '{"model": "', "--json", "--server", own_server]) == 0
    offer = json.loads(capsys.readouterr().out)
    assert [each["text"] for each in offer["candidates"]] == ["served", "served@7"]
    assert offer["source"] == own_server
    assert offer["path"] == "/v1/odd"


def test_what_is_no_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "{", "--server", "nonsense"]) == 2
    assert "is not a URL" in capsys.readouterr().err


def test_what_was_learnt_is_forgotten_when_a_source_changes(home: Path) -> None:
    learnt = []

    def learn() -> int:
        learnt.append(1)
        return len(learnt)

    assert [remembered("x", learn), remembered("x", learn)] == [1, 1]
    file = folder() / "x.json"
    kept = json.loads(file.read_text())
    kept["stamps"][next(iter(kept["stamps"]))][1] += 1
    file.write_text(json.dumps(kept))
    assert remembered("x", learn) == 2
    file.write_text("{half")
    assert remembered("x", learn) == 3


def test_shells_get_words_that_begin_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in {
        "windlass ser": ["serve"],
        "windlass serve po": ["poems", "poems@2", "poems@1", "poems@prod"],
        "windlass serve poems --rep": ["--replicas"],
        "windlass serve poems --kv ": ["float16", "float32"],
        "windlass serve poems --kv=": ["--kv=float16", "--kv=float32"],
        "windlass train po": ["poems.toml"],
        "windlass jobs show ": ["poems"],
        "windlass completion ": ["bash", "zsh", "fish"],
        "windlass nonsense ": [],
    }.items():
        assert main(["complete", "--shell", "fish", "--", line]) == 0
        shown = [each.partition("\t")[0] for each in capsys.readouterr().out.splitlines()]
        assert shown == words, line


def test_a_shell_is_answered_without_loading_any_verb(home: Path) -> None:
    argv = ["complete", "--shell", "bash", "--", "windlass serve poems --rep"]
    script = (
        f"import sys\nfrom windlass.cli.main import main\nmain({argv!r})\n"
        "slow = {'pydantic', 'numpy', 'httpx', 'windlass.cli.serving.serve'}\n"
        "slow.add('windlass.completion.complete')\n"
        "if '--again' in sys.argv: assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    for again in ([], ["--again"]):  # what the verb takes is learnt by the first
        command = [sys.executable, "-c", script, *again]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        assert done.stdout == "--replicas\n"


@pytest.fixture
def program(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a `windlass` that is this one, first on the path."""
    file = home / "bin" / "windlass"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m windlass.cli "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))
    return file


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_the_scripts_are_whole(shell: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script = home / f"windlass.{shell}"
    script.write_text(capsys.readouterr().out)
    subprocess.run([found, "-n", str(script)], check=True)


@pytest.mark.slow
def test_bash_fills_its_own_variables(program: Path) -> None:
    lines = {
        "windlass serve po": ["poems", "poems@2", "poems@1", "poems@prod"],
        "windlass serve poems@pr": ["@prod"],  # bash parts words before the @
        "windlass serve poems --prefix-cache ": ["lru", "lfu", "off"],
        "windlass train poe": ["poems.toml"],
    }
    script = SCRIPTS["bash"] + "\n".join(
        f"COMP_LINE='{line}' COMP_POINT={len(line)}; _windlass; echo \"${{COMPREPLY[*]}}\"" for line in lines
    )
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert [line.split() for line in done.stdout.splitlines()] == list(lines.values()), done.stderr


@pytest.mark.slow
def test_a_person_presses_tab_in_bash(program: Path) -> None:
    typed = {
        "windlass mod\t": "windlass models ",
        "windlass serve ess\t\t": "windlass serve essays",
        "windlass serve poems@pr\t": "windlass serve poems@prod ",
        "windlass serve x --kv=float3\t": "windlass serve x --kv=float32 ",
    }
    for keys, expected in typed.items():
        assert expected in press(keys, expected), keys


def press(keys: str, expected: str) -> str:
    """Type into a real bash on a real terminal; return what it shows."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(
            "bash", ["bash", "--norc", "--noprofile", "-i"], {**os.environ, "PS1": "ready>", "TERM": "dumb"}
        )
    try:
        setup = "source <(windlass completion bash); bind 'set bell-style none'; echo o''k\n"
        os.write(terminal, setup.encode())
        read_until(terminal, "\nok")
        os.write(terminal, keys.encode())
        return read_until(terminal, expected)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, wanted: str, patience_s: float = 30.0) -> str:
    seen, end = "", time.monotonic() + patience_s
    while wanted not in drawn(seen) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
    return drawn(seen)


def drawn(text: str) -> str:
    """Return what a person sees: a backspace goes back over what is written next."""
    shown: list[str] = []
    for sign in text:
        if sign == "\b":
            shown.pop()
        else:
            shown.append(sign)
    return "".join(shown)


@pytest.fixture
def own_server() -> Iterator[str]:
    """A server whose document differs from ours."""
    schema = {"type": "object", "properties": {"model": {"type": "string"}}, "required": ["model"]}
    body = {"content": {"application/json": {"schema": schema}}}
    replies = {
        "/openapi.json": {"paths": {"/v1/odd": {"post": {"requestBody": body, "description": "Odd."}}}},
        "/v1/models": {"data": [{"id": "served@7"}]},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(replies[self.path]).encode())

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
