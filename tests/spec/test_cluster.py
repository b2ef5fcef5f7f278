import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from windlass.spec.cluster import Cluster
from windlass.spec.job import Job
from windlass.spec.read import job_text

WHOLE: dict[str, Any] = {
    "backend": "kubernetes",
    "cores": 2,
    "memory": "8GiB",
    "env": {"TOKENIZERS_PARALLELISM": "false"},
    "secrets": {"AWS_SECRET_ACCESS_KEY": "s3/secret"},
    "volumes": [{"mount": "/home", "claim": "shared"}, {"mount": "/tmp", "scratch": "1GiB"}],
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
    "node_selector": {"disk": "fast"},
}


def test_a_cluster_comes_back_from_the_text_of_its_job() -> None:
    job = Job.model_validate({"cluster": WHOLE})
    assert job.cluster.memory == 8 << 30
    assert Job.model_validate(tomllib.loads(job_text(job))) == job


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"env": {"S3_SECRET_KEY": "x"}}, "looks like a secret"),
        ({"env": {"db_password": "x"}}, "looks like a secret"),
        ({"env": {"A-B": "x"}}, "not the name of an environment variable"),
        ({"secrets": {"KEY": "value"}}, "'SECRET/KEY'"),
        ({"env": {"A": "x"}, "secrets": {"A": "s/k"}}, "give it once"),
        ({"volumes": [{"mount": "/a"}]}, "give one of claim, host and scratch"),
        ({"volumes": [{"mount": "/a", "claim": "x", "host": "/b"}]}, "give one of"),
        ({"volumes": [{"mount": "/a", "claim": "x"}, {"mount": "/a", "host": "/b"}]}, "two are mounted"),
        ({"tolerations": [{"operator": "Equal"}]}, "needs a key"),
        ({"tolerations": [{"key": "k", "value": "v"}]}, "goes with operator 'Equal'"),
        ({"tolerations": [{"key": "k", "seconds": 5}]}, "effect 'NoExecute'"),
        ({"namespace": "Not_A_Label"}, "pattern"),
        ({"nodes": 0}, "greater than or equal"),
    ],
)
def test_what_no_cluster_can_do_is_refused_in_words(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Cluster.model_validate(table)
