"""What may be changed while a run is active, how it is requested, and how it is undone."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from windlass.runs.run_settings import (
    await_scaled,
    await_stopped,
    await_taken,
    pause,
    request_settings,
    scale,
    stop,
    undo,
    unpause,
)
from windlass.runs.run_status import state_of
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput, BadJob, Damaged, ProcessFailed
from windlass.spec.settings import AS_PLANNED, SETTINGS, Settings, applied, difference
from windlass.store.lock import locked
from windlass.store.settings_file import forget_sync, newest, resume_run, who

Start = Callable[..., RunFolder]
Tell = Callable[..., None]
Finish = Callable[[RunFolder], None]


@contextmanager
def running(folder: RunFolder) -> Iterator[None]:
    """Hold the run as the process does that trains it."""
    with locked(folder.path / ".lock", "the run"):
        yield


@pytest.fixture
def take(tell: Tell) -> Callable[[RunFolder, int], None]:
    """Take the newest request as a trainer does, without training."""

    def taken(folder: RunFolder, step: int = 5) -> None:
        request = state_of(folder).requested
        assert request is not None, "there is nothing to take"
        changed, before = difference(state_of(folder).values, request.values)
        record = {
            "event": "settings",
            "step": step,
            "id": request.id,
            "by": request.by,
            "undoes": request.undoes,
        }
        tell(folder, **record, changed=changed, before=before)

    return taken


Take = Callable[..., None]


def test_a_request_holds_the_whole_state_with_who_and_when(start: Start) -> None:
    folder = start()
    request_settings(folder, ["sync.policy=diloco", "sync.every=20"], by="ada")
    written = json.loads((folder.path / SETTINGS).read_bytes())
    assert set(written) == set(Settings.model_fields)
    assert written["sync"]["every"] == 20
    assert written["learning_rate"] is None, "what nobody asked for stays as planned"
    assert (written["id"], written["by"]) == (1, "ada")
    assert written["time"] > 1.6e9


def test_who_asks_is_the_user_of_the_machine_unless_said(start: Start) -> None:
    assert request_settings(start(), ["train.log_every=3"]).by == who()


def test_changes_build_upon_each_other(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["sync.policy=diloco"])
    take(folder)
    request_settings(folder, ["sync.every=20"])
    settings = request_settings(folder, ["train.learning_rate=1e-4"])
    assert settings.id == 3
    assert settings.sync is not None
    assert (settings.sync.policy, settings.sync.every) == ("diloco", 20)
    assert settings.learning_rate == 1e-4


def test_a_change_waits_until_the_trainer_takes_it(start: Start, take: Take) -> None:
    folder = start()
    request = request_settings(folder, ["sync.policy=local", "train.steps=70"])
    assert state_of(folder).requested == request
    assert state_of(folder).sync.policy == "every-step"
    take(folder)
    assert state_of(folder).requested is None
    assert state_of(folder).sync.policy == "local"
    assert state_of(folder).run.steps == 70
    assert state_of(folder).planned.steps == 100


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("train.seed=1", "[train] has no key 'seed'"),
        ("train.learning_rat=1", "did you mean 'learning_rate'"),
        ("train.batch_sequences=16", "'train.batch_sequences' cannot be changed in a run"),
        ("model.width=64", "'model.width' cannot be changed in a run"),
        ("layout.dp=4", "--resume --layout"),
        ("snyc.policy=local", "did you mean 'sync'"),
        ("sync.polcy=local", "did you mean 'policy'"),
        ("policy=local", "write it as TABLE.KEY=VALUE"),
        ("sync.policy", "write it as TABLE.KEY=VALUE"),
        ("train.learning_rate=fast", "[train] learning_rate"),
        ("train.learning_rate=0", "[train] learning_rate"),
        ("train.learning_rate=inf", "learning_rate"),
        ("train.learning_rate=nan", "learning_rate"),
        ("train.checkpoint_every=0", "[train] checkpoint_every"),
        (
            "train.micro_batch_sequences=3",
            "3 does not divide the 4 sequences of a replica; possible: 1, 2, 4",
        ),
        ("train.steps=30", "30 is over; the run has done 40, so at least 41"),
        ("train.steps=4", "warm-up"),
    ],
)
def test_what_a_run_cannot_change_is_refused(start: Start, tell: Tell, assignment: str, reason: str) -> None:
    folder = start(train={"steps": 100, "batch_sequences": 8, "warmup_steps": 5})
    tell(folder, event="step", step=0 if "warm-up" in reason else 40, loss=3.0, tokens_per_s=1.0)
    with pytest.raises((BadInput, BadJob)) as refused:
        request_settings(folder, [assignment])
    assert reason in str(refused.value)
    assert not (folder.path / SETTINGS).exists(), "nothing is written of what is refused"


@pytest.mark.parametrize(
    "tables", [{"train": {"time": "10m", "batch_sequences": 8}}, {"train": {"tokens": "10M"}}]
)
def test_steps_can_be_set_whatever_decided_them(start: Start, tables: dict[str, Any]) -> None:
    assert request_settings(start(**tables), ["train.steps=70000"]).steps == 70000


def test_a_wrong_value_names_the_right_ones(start: Start) -> None:
    with pytest.raises(BadJob, match="'dilco' is not one of its values; did you mean 'diloco'"):
        request_settings(start(), ["sync.policy=dilco"])


def test_a_policy_that_contradicts_the_rest_of_the_job_is_refused(start: Start) -> None:
    with pytest.raises(BadJob, match="shares go with"):
        request_settings(start(layout={"dp": 2, "shares": [3, 1]}), ["sync.policy=local"])
    with pytest.raises(BadInput, match="deterministic goes with"):
        request_settings(start(2, elastic={"deterministic": True}), ["sync.policy=local"])


def test_a_pipeline_keeps_its_micro_batches(start: Start) -> None:
    folder = start(layout={"pp": 2, "micro_batches": 4})
    with pytest.raises(BadInput, match="schedule was made for"):
        request_settings(folder, ["train.micro_batch_sequences=4"])


def test_a_finished_run_takes_no_change(start: Start, finish: Finish) -> None:
    folder = start()
    finish(folder)
    for ask in (
        lambda: request_settings(folder, ["sync.policy=local"]),
        lambda: undo(folder),
        lambda: unpause(folder),
    ):
        with pytest.raises(BadInput, match="run poems/1 has finished"):
            ask()


def test_a_run_without_replicas_has_no_policy_but_a_rate(start: Start) -> None:
    folder = start(layout={})
    with pytest.raises(BadInput, match="has no replicas to synchronise: its layout is one process"):
        request_settings(folder, ["sync.policy=local"])
    assert request_settings(folder, ["train.learning_rate=0.001"]).learning_rate == 0.001


def test_a_run_pauses_and_continues(start: Start, take: Take) -> None:
    folder = start()
    with pytest.raises(BadInput, match="run poems/1 is new; there is nothing to pause"):
        pause(folder)
    with running(folder):
        with pytest.raises(BadInput, match="is not paused; it is running"):
            unpause(folder)
        pause(folder)
        with pytest.raises(BadInput, match="is paused already"):
            pause(folder)
        take(folder)
        assert state_of(folder).stage == "paused"
        assert state_of(folder).running
        unpause(folder)
        take(folder)
        assert state_of(folder).stage == "running"


def test_a_stop_lasts_until_the_run_is_started_again(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["train.learning_rate=1e-4"])
    with running(folder):
        stop(folder, by="ada")
        take(folder)
    with pytest.raises(BadInput, match="there is nothing to stop"):
        stop(folder)
    resume_run(folder.path)
    again = newest(folder.path)
    assert again is not None
    assert (again.id, again.stop, again.learning_rate) == (3, False, 1e-4)
    resume_run(folder.path)
    assert newest(folder.path) == again, "a run that was not asked to stop is left alone"


def test_undo_brings_back_what_was_before_and_undone_again_the_change(start: Start, take: Take) -> None:
    folder = start()
    with pytest.raises(BadInput, match="was not changed yet"):
        undo(folder)
    request_settings(folder, ["train.learning_rate=1e-4", "train.log_every=2"])
    take(folder)
    request_settings(folder, ["train.learning_rate=2e-4"])
    take(folder)
    undone = undo(folder, by="ada")
    assert (undone.learning_rate, undone.log_every, undone.undoes) == (1e-4, 2, 2)
    take(folder)
    assert undo(folder).learning_rate == 2e-4


def test_undo_withdraws_what_was_not_taken_yet(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["train.learning_rate=1e-4"])
    take(folder)
    request_settings(folder, ["train.learning_rate=5e-4"])
    assert undo(folder).learning_rate == 1e-4
    take(folder)
    assert undo(folder).learning_rate is None, "the withdrawn one left nothing to undo but the first"


def test_undo_neither_stops_nor_pauses_a_run(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["train.log_every=2"])
    take(folder)
    with running(folder):
        pause(folder)
        take(folder)
        unpause(folder)
        take(folder)
        stop(folder)
    take(folder)
    resume_run(folder.path)
    undone = undo(folder)
    assert not undone.stop
    assert not undone.paused
    assert (undone.log_every, undone.undoes) == (None, 1)


def test_undo_leaves_a_paused_run_paused(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["train.log_every=2"])
    with running(folder):
        pause(folder)
    undone = undo(folder)
    assert (undone.log_every, undone.paused) == (None, True)


def test_a_job_file_with_another_policy_overrides_earlier_requests(start: Start) -> None:
    folder = start()
    request_settings(folder, ["sync.policy=local", "train.log_every=2"])
    forget_sync(folder.path)
    after = newest(folder.path)
    assert after is not None
    assert (after.id, after.sync, after.log_every) == (2, None, 2)


def test_requests_are_counted_on_where_the_file_was_removed(start: Start, take: Take) -> None:
    folder = start()
    request_settings(folder, ["train.log_every=2"])
    take(folder)
    (folder.path / SETTINGS).unlink()
    assert request_settings(folder, ["train.learning_rate=1e-4"]).id == 2
    assert state_of(folder).requested is not None


def test_a_request_that_is_no_request_says_so(start: Start) -> None:
    folder = start()
    (folder.path / SETTINGS).write_text("{}")
    with pytest.raises(Damaged, match="is not a request"):
        newest(folder.path)


def test_a_waiting_client_gets_what_the_run_took(start: Start, take: Take) -> None:
    folder = start()
    with running(folder):
        request = request_settings(folder, ["train.log_every=2"])
        trainer = threading.Timer(0.2, take, (folder, 9))
        trainer.start()
        taken = await_taken(folder, request, timeout_s=20)
        trainer.join()
    assert (taken["step"], taken["changed"]) == (9, {"log_every": 2})


def test_no_command_waits_for_a_run_that_does_not_run_or_does_not_listen(start: Start) -> None:
    folder = start()
    request = request_settings(folder, ["train.log_every=2"])
    with pytest.raises(BadInput, match="cannot apply requests"):
        await_taken(folder, request, timeout_s=20)
    await_stopped(folder, timeout_s=20)
    with running(folder):
        with pytest.raises(ProcessFailed, match="the request stays"):
            await_taken(folder, request, timeout_s=0.2)
        with pytest.raises(ProcessFailed, match="did not stop"):
            await_stopped(folder, timeout_s=0.2)


def test_who_scales_can_wait_until_so_many_train(start: Start, tell: Tell) -> None:
    folder = start()
    (folder.path / "coordinator").mkdir()
    grown = {
        "event": "generation",
        "generation": 2,
        "members": [{}, {}, {}],
        "layout": {"dp": 3},
        "reason": "asked",
    }
    with running(folder):
        scale(folder, 3, by="ada")
        tell(folder, **grown)
        with pytest.raises(ProcessFailed, match="did not reach 3 workers"):
            await_scaled(folder, 3, timeout_s=0.2)
        tell(folder, event="settled", generation=2, step=9)
        assert await_scaled(folder, 3, timeout_s=20)["reason"] == "asked"


@hypothesis_settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]), st.integers(1, 70))
def test_a_micro_batch_fits_any_layout_that_a_run_comes_under(
    start: Start, batches: int, replicas: int, wanted: int
) -> None:
    batch = batches * 8
    run = start(train={"steps": 100, "batch_sequences": batch}, layout={"dp": replicas}).load()
    settings = Settings.model_validate(
        AS_PLANNED | {"id": 1, "by": "a", "time": 0.0, "micro_batch_sequences": wanted}
    )
    micro = applied(run, settings).micro_batch_sequences
    assert micro <= wanted
    assert (batch // replicas) % micro == 0
