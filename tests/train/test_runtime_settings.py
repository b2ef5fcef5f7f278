"""Runtime settings are applied at a sync point, logged once, and still in force after a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from windlass.spec.run import Run
from windlass.spec.settings import SETTINGS, Settings
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.loop import save_run, train

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Run]


class Person:
    """Requests settings of a run, each at its step."""

    def __init__(self, folder: Path, **asked: Any) -> None:
        """Keywords are `at_3={"log_every": 2}`: after the third time that the loop looked."""
        self._folder, self._looks = folder, 0
        self._asked = {int(when.removeprefix("at_")): what for when, what in asked.items()}

    def __call__(self) -> bool:
        self._looks += 1
        if self._looks in self._asked:
            ask(self._folder, self._looks, **self._asked[self._looks])
        return False


def ask(folder: Path, number: int, **values: Any) -> None:
    settings = Settings.model_validate({"id": number, "by": "ada", "time": 1.0, **values})
    StoreDir(folder).write(SETTINGS, settings.model_dump_json().encode())


def start(folder: Path, run: Run) -> Path:
    folder.mkdir()
    save_run(folder, run)
    return folder


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in Journal(StoreDir(folder)).read() if e["event"] == kind]


def never() -> bool:
    return False


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next((folder / "model").glob("*.safetensors")))


def test_a_learning_rate_is_a_new_peak_for_the_same_schedule(tmp_path: Path, make_run: MakeRun) -> None:
    folder = start(tmp_path / "run", make_run())
    assert train(folder, Person(folder, at_5={"learning_rate": 3e-4}))
    rates = {e["step"]: e["rate"] for e in events(folder, "step")}
    plain = start(tmp_path / "plain", make_run())
    assert train(plain, never)
    planned = {e["step"]: e["rate"] for e in events(plain, "step")}
    (told,) = events(folder, "settings")
    assert (told["step"], told["id"], told["by"]) == (5, 5, "ada")
    assert told["changed"] == {"learning_rate": 3e-4}
    assert told["before"] == {"learning_rate": None}
    assert all(rates[step] == planned[step] for step in range(1, 6))
    assert all(rates[step] == pytest.approx(planned[step] / 10) for step in range(6, 13))


def test_smaller_micro_batches_learn_the_same(tmp_path: Path, make_run: MakeRun) -> None:
    changed, plain = start(tmp_path / "changed", make_run()), start(tmp_path / "plain", make_run())
    assert train(changed, Person(changed, at_4={"micro_batch_sequences": 1}))
    assert train(plain, never)
    one, other = weights(changed), weights(plain)
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-4, rtol=2e-3)


def test_lengths_and_rates_change_at_once(tmp_path: Path, make_run: MakeRun) -> None:
    folder = start(tmp_path / "run", make_run())
    asked = {"steps": 9, "checkpoint_every": 3, "evaluate_every": 2, "log_every": 4}
    assert train(folder, Person(folder, at_5=asked))
    assert [e["step"] for e in events(folder, "finished")] == [9]
    assert [e["step"] for e in events(folder, "step")] == [1, 2, 3, 4, 5, 7, 8, 9]  # 7 is after a checkpoint
    assert [e["step"] for e in events(folder, "checkpoint")][:3] == [4, 6, 9]
    assert [e["step"] for e in events(folder, "evaluation")] == [6, 8, 9]


def test_a_paused_run_waits_and_takes_requests_meanwhile(tmp_path: Path, make_run: MakeRun) -> None:
    folder = start(tmp_path / "run", make_run())
    pauses = {"at_3": {"paused": True}, "at_5": {"paused": True, "log_every": 3}, "at_7": {"log_every": 3}}
    assert train(folder, Person(folder, **pauses))
    told = [(e["event"], e.get("step")) for e in Journal(StoreDir(folder)).read()]
    kept = [e for e in told if e[0] in ("settings", "paused", "unpaused")]
    assert kept == [("settings", 3), ("paused", 3), ("settings", 3), ("settings", 3), ("unpaused", 3)]
    assert events(folder, "settings")[2]["changed"] == {"paused": False}
    plain = start(tmp_path / "plain", make_run())
    assert train(plain, never)
    one, other = weights(folder), weights(plain)
    assert all(torch.equal(one[name], other[name]) for name in one), "a pause costs time and nothing else"


def test_a_run_stops_with_a_checkpoint_also_while_it_is_paused(tmp_path: Path, make_run: MakeRun) -> None:
    folder = start(tmp_path / "run", make_run())
    assert not train(folder, Person(folder, at_3={"paused": True}, at_5={"paused": True, "stop": True}))
    assert [e["step"] for e in events(folder, "stopped")] == [3]
    assert [step for step, _ in steps_of(folder)] == [3]
    ask(folder, 6)
    assert train(folder, never)
    assert [e["step"] for e in events(folder, "resumed")] == [3]


def steps_of(folder: Path) -> list[tuple[int, Path]]:
    return [(int(path.name.removeprefix("step-")), path) for path in committed(folder / "checkpoints")]


def test_a_resumed_run_keeps_its_settings_and_reports_nothing_twice(
    tmp_path: Path, make_run: MakeRun
) -> None:
    folder = start(tmp_path / "run", make_run())
    looks = iter(range(1, 100))
    person = Person(folder, at_2={"learning_rate": 1e-3, "log_every": 5})
    assert not train(folder, lambda: person() or next(looks) >= 6)
    assert train(folder, never)
    assert len(events(folder, "settings")) == 1
    assert events(folder, "step")[-1]["rate"] < 1e-3
    assert [e["step"] for e in events(folder, "step")] == [1, 2, 5, 9, 10, 12]  # 9 is after a checkpoint


def test_a_request_to_a_paused_run_is_reported_when_it_continues(tmp_path: Path, make_run: MakeRun) -> None:
    folder = start(tmp_path / "run", make_run())
    looks = iter(range(1, 100))
    person = Person(folder, at_2={"log_every": 5, "checkpoint_every": 2})
    assert not train(folder, lambda: person() or next(looks) >= 4)
    ask(folder, 3, log_every=4, checkpoint_every=2)
    assert train(folder, never)
    told = events(folder, "settings")[-1]
    assert (told["changed"], told["before"]) == ({"log_every": 4}, {"log_every": 5})


@pytest.mark.parametrize(
    "damage", [b"{", b'{"id": 1}', b'{"id": 1, "by": "a", "time": 0, "steps": -3}', b"[]"]
)
def test_a_damaged_request_does_not_end_a_run(tmp_path: Path, make_run: MakeRun, damage: bytes) -> None:
    folder = start(tmp_path / "run", make_run())
    (folder / SETTINGS).write_bytes(damage)
    assert train(folder, never)
    assert not events(folder, "settings")
    warned = [e for e in events(folder, "warning") if "settings 1 not applied" in e["message"]]
    assert len(warned) == (1 if b'"id"' in damage else 0)
