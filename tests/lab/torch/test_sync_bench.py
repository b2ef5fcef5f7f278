"""The comparison of sync policies, in short."""

import pytest

from windlass.lab.torch.sync_bench import bench_sync, figures_of
from windlass.spec.sync import Sync


def test_figures_compare_each_policy_with_every_step() -> None:
    outcomes = {
        "every_step": {"loss": 4.0, "bytes": 1000.0, "tokens_per_s": 10.0},
        "diloco": {"loss": 5.0, "bytes": 20.0, "tokens_per_s": 15.0},
    }
    assert figures_of(outcomes) == {
        "every_step_loss": 4.0,
        "every_step_bytes": 1000.0,
        "diloco_loss_ratio": 1.25,
        "diloco_bytes_share": 0.02,
        "diloco_speed_ratio": 1.5,
    }


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_train_under_each_policy_and_send_what_it_promises() -> None:
    policies = {"every_step": Sync(), "diloco": Sync(policy="diloco", every=10)}
    result = bench_sync(20, policies)
    assert result["figures"]["diloco_bytes_share"] == 0.1
    assert result["policies"]["every_step"]["bytes"] == 20 * 4 * result["parameters"]
    assert 0.8 < result["figures"]["diloco_loss_ratio"] < 1.25
