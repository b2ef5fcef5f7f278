"""The public face: what it names, that both kinds of client offer the same, and what people see of it."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import windlass.sdk as sdk
from windlass.sdk import Completion, RunProgress, Runs, RunStatus, Show
from windlass.sdk.progress import Notebook, PlainOutput, Terminal, screen_here
from windlass.sdk.submit import command_of, submitted
from windlass.sdk.tables import curve, shown
from windlass.spec.errors import AskedWrongly, ProcessFailed, WindlassError

PAIRS = [(sdk.Client, sdk.AsyncClient), (sdk.Jobs, sdk.AsyncJobs), (sdk.Plans, sdk.AsyncPlans)]


def public(of: Any) -> set[str]:
    return {name for name in vars(of) if not name.startswith("_")}


def test_everything_public_is_named_and_only_that() -> None:
    found = {
        name
        for name, value in vars(sdk).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert found == set(sdk.__all__)


def test_everything_public_says_what_it_is_for() -> None:
    for name in sdk.__all__:
        assert getattr(sdk, name).__doc__, name


@pytest.mark.parametrize(("waits", "awaited"), PAIRS)
def test_both_kinds_of_client_offer_the_same(waits: Any, awaited: Any) -> None:
    assert public(waits) == public(awaited)
    for name in public(waits):
        first, second = getattr(waits, name), getattr(awaited, name)
        assert first.__doc__
        assert first.__doc__ == second.__doc__
        assert inspect.signature(first).parameters == inspect.signature(second).parameters
    made = [inspect.signature(each.__init__).parameters for each in (waits, awaited)]
    assert list(made[0]) == list(made[1])


def test_methods_say_what_they_return() -> None:
    assert inspect.signature(sdk.Client.complete).return_annotation == "Completion"
    assert inspect.signature(sdk.Client.stream).return_annotation == "Stream[str, Completion]"
    assert inspect.signature(sdk.AsyncClient.stream).return_annotation == "AsyncStream[str, Completion]"


def test_every_failure_is_of_the_tree_that_its_page_prints() -> None:
    from windlass.sdk import failures

    kinds = [
        kind for kind in vars(failures).values() if inspect.isclass(kind) and issubclass(kind, Exception)
    ]
    for kind in kinds:
        if kind.__module__ == failures.__name__:
            assert kind.__name__ in (failures.__doc__ or "")
            assert issubclass(kind, WindlassError)
            assert kind.__name__ in sdk.__all__


def test_the_sdk_loads_neither_torch_nor_a_notebook() -> None:
    code = "import sys, windlass.sdk; sys.exit('torch' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_types_reach_the_caller(tmp_path: Path) -> None:
    """mypy sees the settings of a call and what it returns, through the descriptors."""
    assert (Path(sdk.__file__).parent.parent / "py.typed").exists()
    file = tmp_path / "caller.py"
    file.write_text(
        "from windlass.sdk import AsyncClient, Client\n"
        "client = Client('http://x')\n"
        "text: str = client.complete('x', seed=1).text\n"
        "piece: str = next(client.stream('x', temperature=0.5))\n"
        "client.complete('x', sed=1)\n"
        "async def ask(other: AsyncClient) -> int:\n"
        "    return (await other.complete('x')).text\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    output = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    assert 'caller.py:5: error: Unexpected keyword argument "sed"' in output
    assert "caller.py:7: error: Incompatible return value type" in output
    assert output.strip().endswith("Found 2 errors in 1 file (checked 1 source file)")


def test_texts_from_elsewhere_are_shown_and_not_executed() -> None:
    html = Completion("<script>alert(1)</script>", "stop", 1, 2, model="<b>")._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


def run_of(**more: Any) -> RunStatus:
    fields = {
        "run": "poems/1",
        "state": "running",
        "step": 50,
        "loss": None,
        "validation_loss": None,
        "tokens_per_s": 10.0,
        "effective": {"steps": 100, "layout": "dp=2"},
    }
    return RunStatus(fields | more)


def test_runs_are_tables_in_a_notebook() -> None:
    html = Runs([run_of(), run_of(run="<i>")])._repr_html_()
    assert html.count("<tr>") == 3
    assert "<i>" not in html
    assert "step 50 of 100" in run_of()._repr_html_()


def test_a_curve_of_nothing_and_of_one_point_can_be_drawn() -> None:
    assert "nothing to draw" in curve([], "loss")
    assert "nothing to draw" in curve([(1.0, float("nan"))], "loss")
    assert "circle" in curve([(1.0, 2.0)], "loss")
    assert [shown(value) for value in (None, 1234567, 0.123456, 12345.6, "x", float("inf"))] == [
        "-",
        "1,234,567",
        "0.123",
        "12,346",
        "x",
        "-",
    ]


STEP = {"event": "step", "step": 1, "steps": 4, "loss": 3.5, "tokens_per_s": 99.0, "seconds_left": 61}


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    out = io.StringIO()
    times = iter([0.0, 0.1, 9.0, 9.1])
    show = Show("poems", Terminal(out), clock=lambda: next(times))
    show.push(STEP)
    show.push(STEP | {"step": 2})
    show.push(STEP | {"step": 3})
    show.push({"event": "finished", "step": 4})
    show.close()
    written = out.getvalue()
    assert "step 1/4  loss 3.5  99 tok/s  1:01 left" in written
    assert "step 2/4" not in written, "an eye would not see it"
    assert "step 3/4" in written
    assert "poems: step 4: finished" in written
    assert written.endswith("finished\n")


def test_a_notebook_has_one_picture_that_is_drawn_anew() -> None:
    drawn: list[Any] = []

    class Handle:
        def update(self, shown: Any) -> None:
            drawn.append(shown._repr_html_())

    def display(shown: Any, *, display_id: bool) -> Handle:
        assert display_id
        drawn.append(shown._repr_html_())
        return Handle()

    show = Show("poems", Notebook(display), clock=lambda: 0.0)
    show.push(STEP)
    show.push(STEP | {"step": 2})
    show.close()
    assert len(drawn) == 2
    assert "step 2 of 4" in drawn[-1]
    assert "polyline" in drawn[-1]


def test_the_place_to_draw_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(screen_here(io.StringIO()), PlainOutput)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    assert isinstance(screen_here(terminal), Terminal)
    notebook, shell = types.ModuleType("IPython"), types.SimpleNamespace(kernel=1)
    notebook.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    display = types.ModuleType("IPython.display")
    display.display = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert isinstance(screen_here(), Notebook)


def test_progress_without_records_can_be_shown() -> None:
    progress = RunProgress("poems")
    assert "starting" in str(progress)
    assert "nothing to draw" in progress._repr_html_()


def test_a_job_is_submitted_as_the_command_line_does_it() -> None:
    command = command_of(
        "job.toml", {"train.steps": 5, "name": "x y"}, 2, elastic=True, resume=True, home="home"
    )
    assert command[1:] == [
        *("-m", "windlass.cli", "jobs", "submit", "job.toml", "--json"),
        *("--set", "train.steps=5", "--set", 'name="x y"'),
        *("--workers", "2", "--elastic", "--resume", "--home", "home"),
    ]
    done = submitted(0, json.dumps({"run": "x/1", "path": "/x", "pid": 7}).encode(), b"")
    assert (done.run, done.pid) == ("x/1", 7)
    output = json.dumps({"error": {"kind": "BadJob", "message": "no", "hint": "do"}}).encode()
    with pytest.raises(AskedWrongly, match="no\n    do"):
        submitted(2, output, b"")
    with pytest.raises(ProcessFailed, match="ended with 1: Traceback"):
        submitted(1, b"", b"Traceback")


@pytest.mark.slow
def test_a_wrong_job_file_is_refused_by_the_real_command(tmp_path: Path) -> None:
    import asyncio

    with pytest.raises(AskedWrongly, match="no such file"):
        sdk.submit(tmp_path / "none.toml", home=tmp_path)
    with pytest.raises(AskedWrongly, match="no such file"):
        asyncio.run(sdk.submit_async(tmp_path / "none.toml", home=tmp_path))
