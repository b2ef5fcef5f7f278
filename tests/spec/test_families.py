"""What does not go with a family is refused, rather than ignored."""

from typing import Any

import pytest
from pydantic import ValidationError

from windlass.spec.job import Job


def job(family: str, **tables: Any) -> Job:
    return Job.model_validate({"model": {"family": family}, **tables})


@pytest.mark.parametrize("family", ["ngram", "hmm"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", 1e-3), ("batch_sequences", 8), ("clip", 0.5), ("schedule", "wsd"), ("beta1", 0.8)],
)
def test_what_belongs_to_gradients_is_refused_where_there_are_none(family: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{key} belongs to what learns by gradients"):
        job(family, train={key: value})
    job("llama", train={key: value})


@pytest.mark.parametrize("family", ["ngram", "hmm"])
def test_a_job_that_was_written_down_with_all_its_keys_can_be_read_again(family: str) -> None:
    asked = job(family, train={"evaluate_sequences": 4})
    assert Job.model_validate_json(asked.model_dump_json()) == asked


def test_hidden_states_can_be_learnt_on_servers_and_n_grams_cannot() -> None:
    server = {"policy": "server", "servers": 2, "mode": "asynchronous"}
    assert job("hmm", sync=server).sync.servers == 2
    with pytest.raises(ValidationError, match="n-grams are counted once"):
        job("ngram", sync=server)
    with pytest.raises(ValidationError, match="'hmm' has policy = 'server' or none"):
        job("hmm", sync={"policy": "diloco"})
