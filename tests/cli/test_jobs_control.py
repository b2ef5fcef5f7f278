"""`windlass jobs --control`: what is asked, of whom, and what is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from windlass.cli.main import main
from windlass.cli.training import jobs_control
from windlass.control.plane.job_to_group import job_of

JOB = '[corpus]\nsources = ["poems.txt"]\n[elastic]\nmin_workers = 1\n'
STANDS = {
    "uid": "abc",
    "tenant": "default",
    "name": "poems",
    "phase": "queued",
    "place": 2,
    "priority": 5,
    "since_s": 0.0,
    "reason": "waits for 8 free cores; 2 are free",
}


class Asked:
    """A queue that writes down what it is asked."""

    made: ClassVar[list[tuple[object, object]]]
    told: ClassVar[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]

    def __init__(self, where: object, key: object) -> None:
        self.made.append((where, key))

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.told.append((name, args, more))
            return {"list": [STANDS], "events": []}.get(name, STANDS)

        return call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Asked]:
    Asked.made, Asked.told = [], []
    monkeypatch.setattr(jobs_control, "Queue", Asked)
    monkeypatch.setenv("WINDLASS_CONTROL_KEY", "wlk_x")
    monkeypatch.delenv("WINDLASS_CONTROL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poems.toml").write_text(JOB)
    return Asked


def test_a_job_is_sent_as_it_is_written_with_paths_of_this_machine(
    asked: type[Asked], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["jobs", "submit", "poems.toml", "--control", "http://a,http://b", "--priority", "5"]
    assert main([*said, "--set", "train.steps=7"]) == 0
    assert asked.made == [(["http://a", "http://b"], "wlk_x")]
    ((name, (text,), more),) = asked.told
    assert (name, more["priority"], more["tenant"]) == ("submit", 5, None)
    job = job_of(text, Path("/elsewhere"))
    assert (job.name, job.train.steps) == ("poems", 7)
    assert job.corpus.sources == (str(tmp_path / "poems.txt"),)
    assert "min_workers" in job.elastic.model_fields_set
    assert capsys.readouterr().out.startswith("default/poems\n")


def test_the_list_shows_place_and_reason(
    asked: type[Asked], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDLASS_CONTROL", "http://a")
    assert main(["jobs", "list"]) == 0
    told = capsys.readouterr().out
    assert "waits for 8 free cores; 2 are free" in told
    assert "place" in told
    assert main(["jobs", "list", "--json", "--tenant", "ada"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["place"] == 2
    assert asked.told[-1] == ("list", (), {"tenant": "ada"})


def test_an_empty_control_means_this_machine(
    asked: type[Asked],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WINDLASS_CONTROL", "http://a")
    assert main(["jobs", "list", "--control", "", "--home", str(tmp_path / "home")]) == 0
    assert asked.made == []
    assert "no runs yet" in capsys.readouterr().out


def test_jobs_are_stopped_and_moved_in_the_queue(asked: type[Asked]) -> None:
    assert main(["jobs", "stop", "poems", "--control", "http://a"]) == 0
    assert main(["jobs", "priority", "poems", "9", "--control", "http://a"]) == 0
    assert main(["jobs", "serve", "poems@prod", "--port", "8123", "--control", "http://a"]) == 0
    assert [(name, args) for name, args, _ in asked.told[:2]] == [
        ("stop", ("poems",)),
        ("set_priority", ("poems", 9)),
    ]
    assert asked.told[2][2]["service"] == {
        "model": "poems@prod",
        "port": 8123,
        "cluster": {},
        "keys": True,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "poems.toml", "--priority", "5"], "--priority needs --control"),
        (["submit", "poems.toml", "--control", "http://a", "--elastic"], "--elastic cannot be used with"),
        (["explain", "poems"], "no control plane given"),
        (["priority", "poems", "3"], "no control plane given"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    asked: type[Asked], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", *words]) == 2
    assert said in capsys.readouterr().err
    assert asked.told == []
