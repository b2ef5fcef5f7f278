from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.spec.run import RUN_FILE, Run
from windlass.train.elastic.state_sync import settle
from windlass.train.event_log import EventLog
from windlass.train.trainer import Trainer

MakeRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("remembered", "saved", "source", "step"),
    [(3, 5, "checkpoint", 5), (5, 3, "memory", 5), (5, None, "memory", 5), (None, 3, "checkpoint", 3)],
)
def test_a_member_without_state_goes_back_as_little_as_it_can(
    tmp_path: Path, make_run: MakeRun, remembered: int | None, saved: int | None, source: str, step: int
) -> None:
    run = make_run(train={"checkpoint_every": 10_000, "evaluate_every": 10_000})
    (tmp_path / RUN_FILE).write_text(run.model_dump_json())
    lost = Trainer(run, tmp_path, EventLog(tmp_path, rank=0), generation=1)
    for _ in range(7):
        lost.train_step()
        if lost.step_number == remembered:
            lost.keep_in_memory()
        if lost.step_number == saved:
            lost.save()
    lost.ledger.write(durable=True)
    newcomer = Trainer(run, tmp_path, EventLog(tmp_path, rank=0), init_weights=False, generation=2)
    newcomer.memory = lost.memory

    settled = settle(newcomer, None, [None])

    assert (settled.source, newcomer.step_number, settled.rolled_back) == (source, step, 7 - step)
