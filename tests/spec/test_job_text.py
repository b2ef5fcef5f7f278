from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.job import Job
from windlass.spec.read import job_text, read_job

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=20)


def written(job: Job, folder: Path) -> Job:
    path = folder / "job.toml"
    path.write_text(job_text(job), encoding="utf-8")
    return read_job(path)


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    tables = {
        "name": "tiny",
        "corpus": {"sources": ["/texts/a.txt"], "tokenizer": {"vocabulary": 400}},
        "train": {"steps": 40, "learning_rate": 1e-4},
        "layout": {"dp": 2},
        "elastic": {"deterministic": True},
        "checkpoint": {"store": "s3://bucket/runs", "seconds": "30s"},
    }
    job = Job.model_validate(tables)
    assert written(job, tmp_path) == job


@given(st.lists(TEXT, max_size=3))
def test_any_text_survives(prompts: list[str]) -> None:
    job = Job.model_validate({"train": {"sample_prompts": prompts}})
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert written(job, Path(folder)).train.sample_prompts == tuple(prompts)
