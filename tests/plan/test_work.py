"""What is read out of a job for a plan, and sizes for a number of weights."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.fleet.work import read_sizes, sized, work_of
from windlass.spec.errors import AskedWrongly
from windlass.spec.job import Job

SIZES = "layers = 4\nwidth = 64\nheads = 2\nkv_heads = 2\nhead_width = 32\nffn_width = 256\ngated = false\n"
SIZES += "vocabulary = 100\ntied = true\n"


@given(st.floats(6.5, 12).map(lambda power: round(10**power)))
def test_sizes_come_close_to_the_weights_and_can_be_divided(parameters: int) -> None:
    sizes = sized(parameters, 32000)
    assert 0.7 < sizes.parameters / parameters < 1.5
    assert sizes.heads * sizes.head_width == sizes.width
    assert sizes.heads % sizes.kv_heads == 0
    assert sizes.width < 4096 or (sizes.kv_heads == 8 and sizes.layers % 4 == 0)


def test_seventy_billion_weights_are_the_sizes_of_llama() -> None:
    sizes = sized(70_000_000_000, 128256)
    assert (sizes.layers, sizes.width, sizes.heads, sizes.kv_heads, sizes.ffn_width) == (
        80,
        8192,
        64,
        8,
        28672,
    )


def test_steps_and_tokens_mean_the_same() -> None:
    model = {"parameters": "1B", "context": 1024}
    by_steps = work_of(
        Job.model_validate({"name": "a", "model": model, "train": {"steps": 100, "batch_sequences": 64}})
    )
    assert by_steps.tokens == 100 * 64 * 1024
    by_tokens = work_of(
        Job.model_validate(
            {"name": "a", "model": model, "train": {"tokens": "6553600", "batch_sequences": 64}}
        )
    )
    assert by_tokens.steps == by_steps.steps == 100


def test_a_precision_counts_only_where_the_job_names_it() -> None:
    given_none = {"name": "a", "model": {"parameters": "1B"}, "train": {"steps": 9}}
    assert work_of(Job.model_validate(given_none)).precisions == ()
    named = {**given_none, "machine": {"precision": "float32"}}
    assert work_of(Job.model_validate(named)).precisions == ("float32",)


def test_a_micro_batch_of_the_job_is_kept() -> None:
    train = {"steps": 9, "batch_sequences": 8, "micro_batch_sequences": 4}
    job = Job.model_validate({"name": "a", "model": {"parameters": "1B"}, "train": train})
    assert work_of(job).pins == {"micro_batch": 4}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SIZES.replace("width = 64", "width = 0", 1), "width is 0"),
        (SIZES + "experts = 4\n", "top_k from 1 to 4"),
        (SIZES + "top_k = 4\n", "belong to a model with experts"),
        (SIZES + "head = 4\n", "did you mean 'heads'?"),
        ("layers = 4\n", "is missing"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(text)
    with pytest.raises(AskedWrongly) as error:
        read_sizes(path)
    assert reason in str(error.value)


def test_sizes_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(SIZES + "experts = 4\ntop_k = 2\nexpert_width = 128\n")
    assert read_sizes(path).experts == 4
