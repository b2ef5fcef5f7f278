"""What is made of the outcomes of runs on parameter servers."""

import pytest

from windlass.lab.bench import parameter_servers, parameter_servers_statistical


def test_modes_are_compared_with_one_process_alone() -> None:
    outcomes = {
        "local": {"loss": 4.0, "tokens_per_s": 100.0, "staleness": 0.0},
        "synchronous": {"loss": 4.0, "tokens_per_s": 150.0, "staleness": 0.0},
        "asynchronous": {"loss": 4.2, "tokens_per_s": 200.0, "staleness": 1.8},
    }
    figures = parameter_servers.figures_of(outcomes)
    assert figures["asynchronous_speed_ratio"] == 2.0
    assert figures["asynchronous_loss_ratio"] == pytest.approx(1.05)
    assert figures["asynchronous_to_synchronous_loss_ratio"] == pytest.approx(1.05)
    assert figures["asynchronous_staleness"] == 1.8


def test_rows_that_travel_are_compared_with_whole_matrices() -> None:
    outcomes = {
        "local": {"loss": 2.0, "tokens_per_s": 100.0},
        "synchronous": {"loss": 2.1, "tokens_per_s": 50.0, "bytes_per_update": 10.0, "share_of_dense": 0.25},
    }
    assert parameter_servers_statistical.figures_of(outcomes) == {
        "synchronous_loss_ratio": 1.05,
        "synchronous_speed_ratio": 0.5,
        "synchronous_bytes_per_update": 10.0,
        "synchronous_share_of_dense": 0.25,
    }
