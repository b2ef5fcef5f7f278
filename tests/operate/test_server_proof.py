"""What a journal says of updates that were taken back."""

from windlass.operate.server_proof import updates_lost


def step(number: int) -> dict[str, object]:
    return {"event": "step", "step": number}


def test_updates_that_a_run_went_back_behind_are_lost() -> None:
    resumed = {"event": "resumed", "step": 2}
    assert updates_lost([step(1), step(2), step(3), step(4), resumed, step(3), step(4), step(5)]) == 2


def test_a_successor_that_knows_everything_has_lost_nothing() -> None:
    assert updates_lost([step(1), step(2), {"event": "resumed", "step": 3}, step(4)]) == 0
