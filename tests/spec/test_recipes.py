"""The recipes that come with the project are jobs that can be read and planned."""

from pathlib import Path

import pytest

from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.read import read_job

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts("c", "d", vocabulary=100, train_tokens=10**6, validation_tokens=10**5)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_planned(path: Path) -> None:
    job = read_job(path)
    assert job.name == path.stem
    assert plan_run(job, CORPUS, MACHINE).steps >= 1


def test_the_shakespeare_recipe_is_the_well_known_run() -> None:
    (path,) = [p for p in RECIPES if p.stem == "shakespeare-char"]
    job = read_job(path)
    sizes = (job.model.layers, job.model.heads, job.model.width, job.model.context)
    assert sizes == (4, 4, 128, 64)
    assert (job.train.batch_sequences, job.train.steps) == (12, 2000)
