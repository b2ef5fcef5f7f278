"""The command line itself: help, mistakes, exit codes, and that it never loads what computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.cli.main import VERBS, main
from windlass.runs.progress_line import ProgressLine
from windlass.spec.protocol.progress import Progress


def test_every_verb_explains_itself_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        assert "example" in capsys.readouterr().out, verb


def test_no_verb_loads_torch() -> None:
    script = (
        "import sys, importlib\nfrom windlass.cli.main import VERBS, module_of\n"
        "for verb in VERBS: importlib.import_module(module_of(verb))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_loads_no_verb() -> None:
    script = (
        "import sys\nfrom windlass.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'pydantic' not in sys.modules and 'numpy' not in sys.modules, 'the quick way is lost'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_a_misspelt_verb_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


def test_an_error_is_json_when_json_is_requested(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", "nobody", "--json", "--home", str(tmp_path)]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["kind"] == "NotFound"
    assert "nobody" in told["message"]


def test_init_writes_a_job_that_plans_and_writes_over_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "My Poems.toml"
    assert main(["init", str(path)]) == 0
    assert 'name = "my-poems"' in path.read_text()
    assert main(["init", str(path)]) == 2
    assert main(["init", str(path), "--force"]) == 0
    capsys.readouterr()
    assert main(["init", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$defs"]["Train"]


def test_progress_says_how_far_how_fast_and_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("windlass.runs.progress_line.time.monotonic", lambda: now[0])
    line = ProgressLine()
    line(Progress("read", 0, 1000, "steps"))
    now[0] += 10
    line(Progress("read", 250, 1000, "steps", {"loss": "2.5"}))
    now[0] += 1
    line(Progress("read", 260, 1000, "steps"))
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2, "not more than a line every few seconds where nobody watches"
    assert "25%" in shown[1]
    assert "25 steps/s" in shown[1]
    assert "loss 2.5" in shown[1]
    assert "30s left" in shown[1]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(quiet=True)
    line(Progress("read", 1, 1))
    line.say("hello")
    assert capsys.readouterr().err == ""
