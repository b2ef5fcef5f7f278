"""The clients of the control API, blocking and awaiting; what may be asked is in test_control_api.py."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from windlass.runs.training import RunFolder
from windlass.sdk import DeadlinePassed, NotAllowed, NotThere, Plan, RequestRefused, ServiceFailed
from windlass.sdk.progress import PlainOutput
from windlass.spec.errors import AskedWrongly, BadInput
from windlass.store.lock import locked

pytestmark = pytest.mark.slow

Start = Callable[..., RunFolder]
Tell = Callable[..., None]


class Stranger(BaseHTTPRequestHandler):
    """A server that is not ours: it breaks streams off and answers with pages."""

    def do_GET(self) -> None:
        stream = "event-stream" in self.headers.get("accept", "")
        body = b'id: 1\ndata: {"event": "step"}\n\n' if stream else b"<html>no</html>"
        self.send_response(200 if stream else 502)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def jobs(opened: Any, control: tuple[str, str]) -> Any:
    return opened.jobs(*control)


@contextmanager
def running(folder: RunFolder) -> Iterator[None]:
    with locked(folder.path / ".lock", "the run"):
        yield


def test_a_server_that_is_not_there_is_a_sentence(opened: Any) -> None:
    with pytest.raises(ServiceFailed, match="cannot be reached"):
        opened.jobs("http://127.0.0.1:9", "key").list()


def test_a_server_that_is_not_ours_is_a_sentence(opened: Any, stranger: str) -> None:
    with pytest.raises(ServiceFailed, match="is not a Windlass server"):
        opened.jobs(stranger, "key").show("poems/1")


def test_a_stream_that_breaks_off_for_good_is_not_an_end(opened: Any, stranger: str) -> None:
    watched = opened.jobs(stranger, "key").watch("poems/1")
    assert next(watched) == {"event": "step"}
    with pytest.raises(ServiceFailed, match="broke before the run ended"):
        next(watched)


def test_a_run_is_reported_with_names(jobs: Any, start: Start, tell: Tell) -> None:
    folder = start()
    tell(folder, event="step", step=30, loss=2.5, tokens_per_s=9.0)
    (run,) = jobs.list()
    assert (run.name, run.state, run.step, run.steps, run.loss) == ("poems/1", "stopped", 30, 100, 2.5)
    assert run.is_over
    assert jobs.show("poems")["tokens_per_s"] == run.tokens_per_s == 9.0
    assert str(run) == "poems/1: stopped, step 30 of 100, loss 2.5"
    assert "poems/1" in run._repr_html_()


def test_refusals_are_those_of_the_command_line(jobs: Any, opened: Any, control: Any, start: Start) -> None:
    start()
    with pytest.raises(AskedWrongly, match="did you mean 'learning_rate'"):
        jobs.set("poems", {"train.learning_rat": 1})
    with pytest.raises(NotThere, match="there are: poems/1"):
        jobs.pause("poems/7")
    with pytest.raises(NotThere, match="no run of 'songs'"):
        jobs.show("songs")
    with pytest.raises(NotAllowed):
        opened.jobs(control[0], "wrong").list()


def test_a_run_is_changed(jobs: Any, start: Start) -> None:
    with running(start()):
        assert jobs.set("poems", {"train.log_every": 3})["log_every"] == 3
        assert jobs.undo("poems")["log_every"] is None
        assert jobs.pause("poems")["paused"]
        assert not jobs.resume("poems")["paused"]
        assert jobs.stop("poems")["stop"]


def test_a_torn_watch_continues_behind_the_last_record(
    opened: Any, control: tuple[str, str], start: Start, tell: Tell, proxy: Any
) -> None:
    folder = start()
    for step in range(1, 41):
        tell(folder, event="step", step=step, steps=100, loss=3.0)
    url, key = control
    way = proxy(url)
    way.cuts = [700, 900, 1100]
    watched = opened.jobs(way.url, key).watch("poems/1")
    assert [record["step"] for record in watched] == list(range(1, 41))
    assert watched.result.step == 40
    assert way.met >= 4


def test_a_waiting_client_gets_the_end(
    opened: Any, control: tuple[str, str], start: Start, tell: Tell
) -> None:
    folder = start()
    tell(folder, event="step", step=1, steps=100, loss=3.0)
    jobs = opened.jobs(*control)
    with running(folder):
        watched = jobs.watch("poems")
        assert next(watched)["step"] == 1
    assert jobs.wait("poems").state == "stopped"
    assert list(watched) == []


def test_a_run_that_was_just_submitted_is_waited_for(
    opened: Any, jobs: Any, start: Start, tell: Tell
) -> None:
    folder = start()
    opened.time.meanwhile = lambda: tell(folder, event="step", step=1, steps=100, loss=3.0)
    assert jobs.wait("poems").state == "stopped"
    assert len(opened.time.slept) == 1


def test_a_run_that_never_begins_is_not_waited_for_for_ever(opened: Any, jobs: Any, start: Start) -> None:
    start()
    opened.time.meanwhile = lambda: setattr(opened.time, "now", opened.time.now + 20)
    assert jobs.wait("poems").state == "new"
    with pytest.raises(DeadlinePassed):
        jobs.wait("poems", deadline=30)


def test_the_curve_of_a_run_leaves_out_what_was_undone(jobs: Any, start: Start, tell: Tell) -> None:
    folder = start()
    for step, loss in [(1, 4.0), (2, 3.0), (3, float("nan")), (4, 9.0)]:
        tell(folder, event="step", step=step, loss=loss)
    tell(folder, event="resumed", step=2)
    tell(folder, event="step", step=3, loss=2.0)
    curve = jobs.curve("poems")
    assert curve.points == ((1.0, 4.0), (2.0, 3.0), (3.0, 2.0))
    assert "polyline" in curve._repr_html_()
    assert str(curve).endswith("4 to 2")
    assert len(jobs.curve("poems", "perplexity", event="evaluation")) == 0


def test_following_draws_until_the_end(jobs: Any, start: Start, tell: Tell) -> None:
    folder = start()
    tell(folder, event="step", step=50, steps=100, loss=3.0, tokens_per_s=1200.0)
    tell(folder, event="evaluation", step=50, loss=3.1)
    tell(folder, event="stopped", step=50, steps=100)
    out = io.StringIO()
    assert jobs.follow("poems", screen=PlainOutput(out)).state == "stopped"
    lines = out.getvalue().splitlines()
    assert "poems: step 50: validation loss 3.1" in lines
    assert lines[-1] == "poems [############............]  50%  step 50/100  loss 3  1,200 tok/s  stopped"


def test_the_account_of_a_run_has_names(jobs: Any, start: Start, tell: Tell) -> None:
    folder = start()
    spent = {"compute": 3.0, "communication": 1.0}
    tell(folder, event="started", time=100.0)
    tell(
        folder, event="ledger", time=104.0, generation=0, steps=[0, 1], samples=[0, 8], digest=0, spent=spent
    )
    lost = {
        "worker": "w2",
        "node": "n",
        "rank": 1,
        "generation": 1,
        "how": "exit",
        "detail": "",
        "silent_s": 0.0,
    }
    tell(folder, event="lost", time=104.5, **lost)
    goodput = jobs.goodput("poems")
    assert goodput.seconds["compute"] == 3.0
    assert 0 <= goodput.goodput <= 1
    assert "goodput" in goodput._repr_html_()
    (incident,) = jobs.incidents("poems")
    assert "w2" in incident.sentence
    audit = jobs.audit("poems")
    assert (audit.ok, audit.samples_lost, audit.samples_repeated) == (False, 0, 0)
    assert "samples_lost" in audit._repr_html_()


JOB: dict[str, Any] = {
    "corpus": {"sources": ["not-there.txt"]},
    "train": {"tokens": "10B", "batch_sequences": 64},
}


@pytest.mark.slow
def test_a_plan_is_requested_and_read(opened: Any, control: tuple[str, str], tmp_path: Any) -> None:
    plans = opened.plans(*control)
    plan = plans.ask(JOB, fleet="16xH100-SXM5", sizes="Llama-3.1-8B", search="greedy")
    assert plan.is_solved
    assert plan.no_solution is None
    best = plan.best
    assert best.devices <= 16
    assert best.memory_bytes <= best.limit_bytes
    assert best.dollars is not None
    assert best.dollars[0] <= best.dollars[1]
    assert sum(best.step_parts_s.values()) == pytest.approx(best.step_s)
    assert best.name in str(plan)
    assert best.name in plan._repr_html_()
    assert "H100-SXM5" in plans.choices().devices
    assert all(point.seconds > 0 for point in plan.front)
    file = tmp_path / "job.toml"
    file.write_text('[corpus]\nsources = ["x"]\n[train]\ntokens = "10B"\nbatch_sequences = 64\n')
    late = plans.ask(file, fleet="8xH100-SXM5", sizes="Llama-3.1-8B", search="greedy", deadline="30h")
    assert not late.is_solved
    assert late.no_solution is not None
    assert late.no_solution.fixes
    with pytest.raises(BadInput, match=late.no_solution.sentence[:20]):
        _ = late.best
    assert "no solution" in late._repr_html_()
    with pytest.raises(RequestRefused):
        plans.ask(JOB, fleet="16xNO-SUCH-DEVICE")


def test_what_is_no_plan_is_refused(tmp_path: Any) -> None:
    with pytest.raises(BadInput, match="not a plan"):
        Plan.read("{}")
    file = tmp_path / "plan.json"
    file.write_text('{"format": "windlass-plan-1", "outcome": "plan"}')
    assert Plan.load(file).is_solved
