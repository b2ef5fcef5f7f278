"""A run: a job in which nothing is left open.

The planner turns a Job into a Run; the trainer does what it says and nothing else. It is saved as
run.json in the run's directory, whose other parts are named here:

    run.json        this plan
    journal.jsonl   events of the run
    settings.json   the newest request to change settings, if there is one (spec.settings)
    checkpoints/    step-00000020/ ...
    store.json      where copies of the checkpoints are sent, if anywhere (docs/formats/mirror.md)
    tensorboard/    event files
    model/          the result, a Hugging Face directory with a manifest
"""

from __future__ import annotations

from typing import Literal

from windlass.spec.config_model import ConfigModel
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.shape import HmmShape, Network, NgramShape, Shape

RUN_FILE = "run.json"
JOURNAL = "journal.jsonl"
CHECKPOINTS = "checkpoints"
STORE_FILE = "store.json"
TENSORBOARD = "tensorboard"
RESULT = "model"
LINEAGE = "windlass.json"
"""File in a model directory: where the model comes from and how good it is."""


class RunPrediction(ConfigModel):
    """What the planner expects; the journal has the actual figures."""

    tokens_per_s: float
    seconds: float
    loss: float | None
    """None where no scaling law applies: for masked tokens, and for a model that starts from another."""
    memory_bytes: int
    plain_s: float | None = None
    """For counted families, the seconds before correction by earlier runs; later runs compare with them."""
    reasons: tuple[str, ...] = ()


class Run(ConfigModel):
    """Everything that determines the bits of the result."""

    job: Job
    shape: Shape
    corpus: str
    corpus_digest: str
    start_from: str | None
    layout: Layout
    objective: Literal["causal", "masked"]
    steps: int
    time_s: float | None
    batch_sequences: int
    micro_batch_sequences: int
    learning_rate: float
    warmup_steps: int
    evaluate_every: int
    evaluate_sequences: int
    final_sequences: int | None
    checkpoint_every: int
    threads: int
    compile: bool
    predicted: RunPrediction
    code: str

    @property
    def network(self) -> Network:
        """The shape of a run that trains by gradients; callers use it for such runs only."""
        assert not isinstance(self.shape, NgramShape | HmmShape)
        return self.shape

    @property
    def tokens_per_step(self) -> int:
        return self.batch_sequences * self.shape.context
