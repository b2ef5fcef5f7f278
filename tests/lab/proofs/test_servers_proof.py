"""What a journal says of updates that were taken back."""

from windlass.lab.proofs.servers.servers_proof import is_complete, updates_lost


def step(number: int) -> dict[str, object]:
    return {"event": "step", "step": number}


def test_updates_that_a_run_went_back_behind_are_lost() -> None:
    resumed = {"event": "resumed", "step": 2}
    assert updates_lost([step(1), step(2), step(3), step(4), resumed, step(3), step(4), step(5)]) == 2


def test_a_successor_that_knows_everything_has_lost_nothing() -> None:
    assert updates_lost([step(1), step(2), {"event": "resumed", "step": 3}, step(4)]) == 0


def test_a_run_is_complete_that_reports_of_every_iteration_once() -> None:
    assert is_complete([step(1), {"event": "resumed", "step": 1}, step(2), step(3)])
    assert not is_complete([step(1), step(3)])
    assert not is_complete([step(1), step(2), step(2)])
