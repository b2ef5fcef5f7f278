import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from windlass.lab.chaos.compare_runs import RunComparison, likeness
from windlass.lab.chaos.experiment import Experiment, Miss, Strike
from windlass.lab.chaos.injected_fault import InjectedFault
from windlass.lab.chaos.measure import MeasuredCapacity
from windlass.lab.chaos.report import ChaosReport, report_on
from windlass.lab.chaos.schedule import ScheduledFault
from windlass.lab.chaos.watch import SeenRecord
from windlass.runs.audit import LedgerAudit
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput

SAME = RunComparison(True, 0.0, 0.0)


def an_experiment() -> tuple[Experiment, list[SeenRecord]]:
    """Two faults in 20 s: a kill, seen after 0.1 s and over after 1 s, and a leader replaced after 2 s."""
    experiment = Experiment(100.0, 120.0)
    experiment.strikes = [
        Strike(
            ScheduledFault(4.0, "kill", 5.0, 1),
            InjectedFault(("w1",), lasts=False, note="rank 1"),
            104.0,
            1,
            1,
        ),
        Strike(
            ScheduledFault(10.0, "coordinator", 5.0, 1),
            InjectedFault(lasts=False, interrupts=False),
            110.0,
            2,
            1,
        ),
    ]
    experiment.misses = [Miss(ScheduledFault(19.0, "corrupt", 5.0, 1), "the experiment was over")]
    journal = [
        (100.0, {"event": "ledger", "generation": 1, "samples": [0, 0]}),
        (104.1, {"event": "lost", "worker": "w1"}),
        (104.6, {"event": "joined", "worker": "w9"}),
        (105.0, {"event": "ledger", "generation": 2, "samples": [0, 80]}),
        (112.0, {"event": "coordinator", "epoch": 2}),
        (120.0, {"event": "ledger", "generation": 2, "samples": [80, 361]}),
    ]
    return experiment, [SeenRecord(at_s, record) for at_s, record in journal]


def a_report(
    *, audit: LedgerAudit | None = None, same: RunComparison | None = SAME, **facts: object
) -> ChaosReport:
    experiment, seen = an_experiment()
    given: dict[str, object] = {"deterministic": True, "failure": None, **facts}
    return report_on(
        run="job-chaos/2",
        reference="job-chaos/1",
        workers=2,
        spares=0,
        seed=1,
        experiment=experiment,
        seen=seen,
        capacity=MeasuredCapacity({1: 10.0, 2: 20.0}),
        unable={"clock": "no C compiler is installed"},
        audit=audit or LedgerAudit(samples_used=361),
        likeness=same,
        **given,  # type: ignore[arg-type]
    )


def test_a_report_has_the_figures_of_its_faults() -> None:
    figures = a_report().figures
    assert figures["faults"] == 2
    assert (figures["samples_lost"], figures["samples_repeated"], figures["weights_identical"]) == (0, 0, 1)
    assert figures["detection_p99_s"] == pytest.approx(0.1)
    assert (figures["recovery_p50_s"], figures["recovery_p99_s"]) == (1.0, 2.0)
    assert figures["throughput_kept"] == pytest.approx(361 / (0.6 * 10 + 19.4 * 20), abs=1e-4)
    assert figures["throughput_vs_calm"] == pytest.approx(361 / 400, abs=1e-4)


def test_a_report_reports_machines_and_people_the_same() -> None:
    report = a_report()
    assert json.loads(json.dumps(report.body)) == report.body
    assert report.body["kinds"]["kill"]["faults"] == 1
    assert "2 faults in 20 s on 2 workers from seed 1" in report.text
    assert "not injected here: no C compiler is installed" in report.text
    assert "missed: corrupt at 19.0 s: the experiment was over" in report.text


def test_a_report_is_good_only_if_nothing_was_lost() -> None:
    assert a_report().good
    assert not a_report(audit=LedgerAudit(samples_lost=8, reasons=["a gap"])).good
    assert not a_report(audit=LedgerAudit(samples_repeated=8, reasons=["a repetition"])).good
    assert not a_report(same=None, failure="it died").good


def test_different_weights_are_a_fault_of_deterministic_runs_only() -> None:
    apart = RunComparison(False, 1e-6, 1e-7)
    assert not a_report(same=apart).good
    assert a_report(same=apart, deterministic=False).good


def a_run(folder: Path, weights: list[float], losses: dict[int, float]) -> RunFolder:
    (folder / "model").mkdir(parents=True)
    save_file({"w": np.array(weights, np.float32)}, folder / "model" / "model.safetensors")
    lines = [json.dumps({"event": "step", "step": s, "loss": x}) for s, x in losses.items()]
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return RunFolder(folder)


def test_equal_runs_are_alike_bit_by_bit(tmp_path: Path) -> None:
    one = a_run(tmp_path / "1", [1.0, -0.0], {10: 2.0})
    other = a_run(tmp_path / "2", [1.0, -0.0], {10: 2.0, 20: 1.0})
    assert likeness(one, other) == RunComparison(True, 0.0, 0.0)


def test_a_sign_of_zero_is_a_difference_of_bits(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "1", [0.0], {}), a_run(tmp_path / "2", [-0.0], {})
    assert likeness(one, other).weights_identical is False
    assert likeness(one, other).largest_weight_difference == 0.0


def test_the_last_time_that_a_step_was_done_counts(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "1", [1.0], {10: 2.0}), a_run(tmp_path / "2", [1.5], {10: 2.0})
    with (other.path / "journal.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 10, "loss": 2.2}\n')
    found = likeness(one, other)
    assert found.largest_loss_difference == pytest.approx(0.1)
    assert found.largest_weight_difference == 0.5


def test_models_of_other_tensors_are_not_compared(tmp_path: Path) -> None:
    one = a_run(tmp_path / "1", [1.0], {})
    (tmp_path / "2" / "model").mkdir(parents=True)
    with pytest.raises(BadInput):
        likeness(one, RunFolder(tmp_path / "2"))
