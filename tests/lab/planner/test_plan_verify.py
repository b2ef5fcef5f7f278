from pathlib import Path

import pytest

from windlass.lab.planner.plan_verify import Verified, as_json, default_job, figures, verify
from windlass.lab.planner.trials import MIDDLE, PlanTrial, trials_for
from windlass.plan.local.profile import load_profile
from windlass.plan.search import build_shape
from windlass.spec.errors import BadInput
from windlass.spec.layout import check_layout
from windlass.spec.protocol.progress import silent

MADE_UP = load_profile(Path(__file__).parents[2] / "plan" / "profile-two-cores.json")
"""Of a machine with two cores, made up from simple laws: no noise of a real one is in it."""


def verified(predicted_s: float, measured_s: float, predicted_bytes: int, measured_bytes: int) -> Verified:
    return Verified(
        name="one",
        parameters=1,
        layout="dp=2",
        processes=2,
        threads=1,
        micro_batch=1,
        predicted_s=predicted_s,
        measured_s=measured_s,
        predicted_bytes=predicted_bytes,
        measured_bytes=measured_bytes,
        busy=1.0,
        parts_s={},
    )


def test_errors_are_relative_to_what_was_measured_and_their_sizes_are_averaged() -> None:
    found = [verified(1.1, 1.0, 90, 100), verified(0.7, 1.0, 100, 100)]
    assert figures(found) == pytest.approx({"time_mape": 0.2, "memory_mape": 0.05, "layouts": 2})
    told = as_json(found)
    assert [row["time_error"] for row in told["layouts"]] == pytest.approx([0.1, -0.3])


@pytest.mark.parametrize("cores", [2, 4, 16])
def test_a_machine_with_several_cores_has_twelve_layouts_of_every_kind(cores: int) -> None:
    trials = trials_for(cores, job_model=False)
    layouts = {trial.job(default_job(), 8).layout for trial in trials}
    assert len(trials) >= 12
    assert len({trial.name for trial in trials}) == len(trials)
    for axis in ("dp", "sharded", "tp", "pp"):
        assert any(getattr(layout, axis) > 1 for layout in layouts)


@pytest.mark.parametrize("cores", [1, 2, 4, 8])
def test_every_trial_can_run(cores: int) -> None:
    for trial in trials_for(cores, job_model=False):
        job = trial.job(default_job(), 8)
        assert job.model.width is not None
        shape = build_shape(job, 4096, job.model.width, job.model.layers)
        check_layout(job.layout, shape, trial.batch, trial.micro_batch)


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    trials = trials_for(2, job_model=False)
    with pytest.raises(BadInput, match="--steps 2"):
        verify(MADE_UP, default_job(), trials, tmp_path, silent, steps=2, tell=lambda _one: None)


@pytest.mark.long
@pytest.mark.slow
def test_a_layout_is_run_and_its_time_and_memory_are_measured(tmp_path: Path) -> None:
    told: list[Verified] = []
    small = PlanTrial("small", "dp=2", 4, 2, 1, {**MIDDLE, "width": 64, "layers": 2})
    found = verify(MADE_UP, default_job(), [small], tmp_path, silent, steps=6, tell=told.append)
    assert told == found
    assert found[0].measured_s > 0
    assert found[0].measured_bytes > 100 << 20
    assert found[0].processes == 2
    assert list((tmp_path / "verify").iterdir()) == []
