"""A run: a job in which nothing is left open.

The planner turns a Job into a Run; the trainer does what it says and nothing else. It is saved as
run.json in the run's directory, whose other parts are named here:

    run.json        this plan
    journal.jsonl   what happened
    settings.json   what it was asked to change meanwhile, if anything (spec.settings)
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
"""In a model directory: where the model comes from and how good it is."""


class RunPrediction(ConfigModel):
    """What the planner expects; the journal shows what came."""

    tokens_per_s: float
    seconds: float
    loss: float | None
    """None where no law says it: of masked tokens, and of a model that goes on from another."""
    memory_bytes: int
    plain_s: float | None = None
    """Of what is counted, the seconds before earlier runs corrected them: later runs are compared with it."""
    reasons: tuple[str, ...] = ()


class Run(ConfigModel):
    """Everything that decides the bits of the result."""

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
        """The shape of a run that learns by gradients; there is no other in what asks for it."""
        assert not isinstance(self.shape, NgramShape | HmmShape)
        return self.shape

    @property
    def tokens_per_step(self) -> int:
        return self.batch_sequences * self.shape.context
